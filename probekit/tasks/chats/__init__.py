"""Chats: messages with roles, and the template of a model that makes one text of them."""
