// Search of pages that are opened from disk, where browsers refuse workers: the worker's script runs in a hidden frame.
// mkdocs-material's offline plugin loads a script of this kind (iframe-worker) from a server, so it would need a network.
class IFrameWorker extends EventTarget {
  constructor(url) {
    super()
    this.frame = document.createElement("iframe")
    this.frame.hidden = true
    document.body.append(this.frame)
    const inside = this.frame.contentWindow
    inside.document.open() // it removes listeners, so it comes first
    this.loaded = new Promise((resolve) => (inside.onload = resolve))
    inside.tell = (data) => {
      const message = new MessageEvent("message", { data })
      this.dispatchEvent(message)
      this.onmessage?.(message)
    }
    inside.document.write(`<body><script>
      postMessage = (data) => tell(data)
      importScripts = (...urls) => urls.reduce((before, url) => before.then(() => new Promise((resolve, reject) => {
        const script = Object.assign(document.createElement("script"), { src: url, onload: resolve, onerror: reject })
        document.body.append(script)
      })), Promise.resolve())
    <\/script><script src="${url}"><\/script>`)
    inside.document.close()
  }
  postMessage(data) {
    this.loaded.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })))
  }
  terminate() {
    this.frame.remove()
  }
}
if (location.protocol === "file:") {
  window.IFrameWorker = window.Worker = IFrameWorker
}
