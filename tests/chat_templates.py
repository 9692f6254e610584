"""Chat templates in the style of well-known families, each with a plain reference; and hostile ones."""

from collections.abc import Callable, Sequence

Chat = Sequence[dict[str, str]]
Pieces = list[tuple[str, str | None]]  # a text, and the role whose content it is, or None for formatting

TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}

MARKUP = """
{%- for message in messages %}
    {{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""


def markup_pieces(chat: Chat, prompt: bool) -> Pieces:
    pieces: Pieces = []
    for one in chat:
        pieces += [(f"<|im_start|>{one['role']}\n", None), (one["content"], one["role"]), ("<|im_end|>\n", None)]
    return [*pieces, ("<|im_start|>assistant\n", None)] if prompt else pieces


HEADERS = """
{%- for message in messages -%}
    {%- set head = '<|start_header_id|>' ~ message.role ~ '<|end_header_id|>\\n\\n' -%}
    {%- set content = head ~ message.content | trim ~ '<|eot_id|>' -%}
    {%- if loop.first -%}{%- set content = bos_token ~ content -%}{%- endif -%}
    {{- content -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}{%- endif -%}
"""


def headers_pieces(chat: Chat, prompt: bool) -> Pieces:
    pieces: Pieces = [("<s>", None)]
    for one in chat:
        head = f"<|start_header_id|>{one['role']}<|end_header_id|>\n\n"
        pieces += [(head, None), (one["content"].strip(), one["role"]), ("<|eot_id|>", None)]
    return [*pieces, ("<|start_header_id|>assistant<|end_header_id|>\n\n", None)] if prompt else pieces


INST = """
{%- if messages[0].role == 'system' %}
    {%- set system = messages[0].content %}
    {%- set rest = messages[1:] %}
{%- else %}
    {%- set rest = messages %}
{%- endif %}
{{- bos_token }}
{%- for message in rest %}
    {%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('roles must alternate user/assistant/user/assistant/...') }}
    {%- endif %}
    {%- if message.role == 'user' %}
        {%- if loop.first and system is defined %}
            {{- ' [INST] <<SYS>>\\n' + system + '\\n<</SYS>>\\n\\n' + message.content.strip() + ' [/INST]' }}
        {%- else %}
            {{- ' [INST] ' + message.content.strip() + ' [/INST]' }}
        {%- endif %}
    {%- elif message.role == 'assistant' %}
        {{- ' ' + message.content.strip() + eos_token }}
    {%- else %}
        {{- raise_exception('only user and assistant roles are supported') }}
    {%- endif %}
{%- endfor %}
"""


def inst_pieces(chat: Chat, prompt: bool) -> Pieces:
    pieces: Pieces = [("<s>", None)]
    system = [one["content"] for one in chat if one["role"] == "system"]
    rest = [one for one in chat if one["role"] != "system"]
    for i, one in enumerate(rest):
        text = (one["content"].strip(), one["role"])
        if one["role"] == "assistant":
            pieces += [(" ", None), text, ("</s>", None)]
        elif i == 0 and system:
            pieces += [(" [INST] <<SYS>>\n", None), (system[0], "system"), ("\n<</SYS>>\n\n", None)]
            pieces += [text, (" [/INST]", None)]
        else:
            pieces += [(" [INST] ", None), text, (" [/INST]", None)]
    return pieces


STYLES: dict[str, tuple[str, Callable[[Chat, bool], Pieces]]] = {
    "markup": (MARKUP, markup_pieces),
    "headers": (HEADERS, headers_pieces),
    "inst": (INST, inst_pieces),
}

# what templates of the Hub do besides; texts are compared with `transformers`, contents with what is expected
ODD = {
    "thoughts left out of earlier turns": """
{%- for message in messages %}
    {%- set content = message.content %}
    {%- if message.role == 'assistant' and '</think>' in content %}
        {%- set thought = content.split('</think>')[0].split('<think>')[-1].strip() %}
        {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- if loop.last %}{% set content = '<think>\\n' ~ thought ~ '\\n</think>\\n\\n' ~ content %}{% endif %}
    {%- endif %}
    {{- '<|' ~ message.role ~ '|>' ~ content ~ '<|end|>\\n' }}
{%- endfor %}""",
    "an empty thought in the last turn": """
{%- for message in messages %}
    {%- set content, thought = message.content, '' %}
    {%- if '</think>' in content %}
        {%- set thought = content.split('</think>')[0].split('<think>')[-1].strip() %}
        {%- set content = content.split('</think>')[-1].strip() %}
    {%- endif %}
    {{- '<|' ~ message.role ~ '|>' }}
    {%- if loop.last %}{{ '<think>\n' ~ thought ~ '\n</think>\n\n' }}{% endif %}
    {{- content ~ '<|end|>\n' }}
{%- endfor %}""",
    "loop controls and namespaces": """
{%- set ns = namespace(n=0, last='') %}
{%- for message in messages %}
    {%- if message.role == 'system' %}{% continue %}{% endif %}
    {%- set ns.n = ns.n + 1 %}{% set ns.last = message.role %}
    {{- ns.n ~ '. ' ~ message.content ~ '\\n' }}
    {%- if ns.n == 3 %}{% break %}{% endif %}
{%- endfor %}
{{- ns.last }}""",
    "json": "{% for m in messages %}{{ m.content | tojson }}\n{% endfor %}{{ messages[0].role | tojson }}",
    "json with indents": "{% for m in messages %}{{ {'a': m.content} | tojson(indent=2) }}\n{% endfor %}",
    "generation blocks": """
{%- for m in messages %}{{ m.role }}: {% generation %}{{ m.content }}!{% endgeneration %}
{% endfor %}""",
    "macros": """
{%- macro turn(m) -%}({{ m.role }}) {{ m.content | trim | upper }}{%- endmacro -%}
{%- for m in messages %}{{ turn(m) }}
{% endfor %}""",
    "blanks around tags": "{% for m in messages %}\n  {% if m.role %}\n {{ m.content }}\n  {% endif %}\n{% endfor %}\n",
    "no tools, no documents": """{% if tools %}x{% endif %}{% if documents is not none %}y{% endif %}
{%- for m in messages %}{{ m['content'] ~ eos_token }}{% if not loop.last %}{{ loop.index }}{% endif %}{% endfor %}""",
    "the last message first": "{% for m in messages | reverse %}{{ m.role }}={{ m.content }};{% endfor %}",
    "dict and zip": "{% set d = dict(a=1) %}{% for m in messages %}{{ d.a }}{{ m.get('content', '?') }}|{% endfor %}",
}

LOOP = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
HOSTILE = {
    "memory": ("{% set x = 'a' * 10 ** 11 %}", "memory"),
    "10 MB": ("{{ 'a' * 10 ** 7 }}", "output"),
    "10 MB in pieces": ("{% for i in range(10000) %}{{ 'a' * 1000 }}{% endfor %}", "output"),
    "padding": ("{{ '%9999999999d' % 1 }}", "memory"),
    "attributes": ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "unsafe"),
    "globals": ("{{ cycler.__init__.__globals__.os.popen('id').read() }}", "unsafe"),
    "functions": ("{{ raise_exception.__globals__.x }}", "unsafe"),
    "methods": ("{{ strftime_now.__self__.x }}", "unsafe"),
    "formats": ("{{ '{0.__class__.__mro__}'.format(messages) }}", "unsafe"),
    "changes": ("{{ messages.append(1) }}", "unsafe"),
    "private names": ("{% set ns = namespace(__class__=1) %}", "unsafe"),
    "recursion": ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "failed"),
    "files": ("{% include '/etc/passwd' %}", "failed"),
    "undefined": ("{{ messages[0].nothing.more }}", "failed"),
    "ranges": ("{{ range(10 ** 9) | list }}", "failed"),
    "refusal": ("{{ raise_exception('no') }}", "refused"),
}
