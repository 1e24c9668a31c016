"""The chat format in Python: the same text as chat_template.jinja, for writing training sessions."""

import json

HEAD = "# Tools\n\nThese functions are at hand, one a line:\n<tools>"
TAIL = (
    "\n</tools>\n\nTo use one, write its name and its arguments as one JSON object:\n"
    '<tool_call>\n{"name": "…", "arguments": {…}}\n</tool_call>'
)


def dumps(value):
    return json.dumps(value, ensure_ascii=False)


def system(text, tools):
    parts = [text] if text else []
    if tools:
        parts.append(HEAD + "".join("\n" + dumps(tool) for tool in tools) + TAIL)
    return turn("system", "\n\n".join(parts)) if parts else ""


def turn(role, text):
    return f"<|im_start|>{role}\n{text}<|im_end|>\n"


def call(name, arguments):
    return f'<tool_call>\n{{"name": {dumps(name)}, "arguments": {dumps(arguments)}}}\n</tool_call>'


def assistant(text, calls=()):
    return turn("assistant", "\n".join(([text] if text else []) + [call(*c) for c in calls]))


def result(text):
    return turn("user", f"<tool_response>\n{text}\n</tool_response>")
