"""Writes agent sessions about real files: a conversation in the chat format whose tool results hold the files' own text.

An agent lists folders, searches, reads ranges, edits lines it has read (at once or many steps later), runs checks and answers
questions about what it saw. Everything it quotes stands earlier in the session, so the sessions teach copying over distances
up to their length.
"""

import difflib
import random
import re

import chat

OPENINGS = [
    "You are a coding agent that works in a checkout of {package}.",
    "You are a coding assistant with access to the repository of {package}.",
    "You help a developer with the source code of {package}.",
    "You are a careful engineer at work on {package}, written in {language}.",
    "You are an agent for software maintenance. The project is {package}.",
]
RULES = [
    "Look before you change anything.",
    "Keep every edit as small as the task allows.",
    "Run the tests that cover a change.",
    "Use the tools; do not guess what a file contains.",
    "Say in one or two short sentences what you expect before each call.",
    "Read the code that a change touches, its callers and its tests.",
    "When a command fails, read its whole output before you try again.",
    "Do not reformat or rename what the task does not concern.",
    "Quote names and lines exactly as they stand in the file.",
    "Stop and ask when the task is unclear.",
    "Answer briefly and name the files you changed.",
    "Do not touch files outside the checkout, and do not install anything.",
    "Search before you guess where a thing is.",
    "Report at the end what you changed, which tests you ran and what they said.",
    "Errors name the file, the field and the remedy.",
    "A test states a fact about behaviour in its name.",
    "Paths are relative to the root of the checkout.",
    "Public items have documentation that says what they are.",
]
HEADINGS = ["How you work", "Rules", "Guidelines", "Style", "What to keep in mind"]

# name: (descriptions, {argument: (type, descriptions)}, required)
TOOLS = {
    "read_file": (
        ["Read a range of lines of a text file.", "Read a text file, or a range of its lines. Lines come back with their numbers in front.", "Show a file of the project with line numbers."],
        {"path": ("string", ["Path from the root.", "The file to read."]), "first": ("integer", ["First line, from 1.", "Line to start at."]), "last": ("integer", ["Last line, inclusive.", "Line to end at."])},
        ["path"],
    ),
    "edit_file": (
        ["Replace one exact piece of text in a file by another.", "Replace text in a file. The old text must occur exactly once.", "Change a file: old text to new text."],
        {"path": ("string", ["Path from the root.", "The file to change."]), "old": ("string", ["The text to replace, exactly as it stands.", "Text that occurs once."]), "new": ("string", ["The text to put in its place.", "The replacement."])},
        ["path", "old", "new"],
    ),
    "write_file": (
        ["Create a file, or replace the whole content of one.", "Write a new file."],
        {"path": ("string", ["Path from the root."]), "content": ("string", ["The whole content.", "Text to write."])},
        ["path", "content"],
    ),
    "run_command": (
        ["Run one shell command at the root and wait for it.", "Run a command. Answers with its output and exit code."],
        {"command": ("string", ["The command line."]), "timeout_s": ("integer", ["Stop after so many seconds."])},
        ["command"],
    ),
    "search": (
        ["Search the files for a regular expression.", "Search the checkout for a pattern. Answers with file, line number and line."],
        {"pattern": ("string", ["A regular expression."]), "path": ("string", ["Folder or file to search in."]), "context": ("integer", ["Lines to show around each match."])},
        ["pattern"],
    ),
    "list_dir": (
        ["List a folder.", "List a folder of the checkout with sizes."],
        {"path": ("string", ["Path from the root."])},
        ["path"],
    ),
}
EXTRA_TOOLS = [
    ("git_diff", "Show the changes that are not committed.", {}, []),
    ("git_log", "Show the last commits.", {"count": {"type": "integer"}}, []),
    ("run_tests", "Run the test suite or a part of it.", {"filter": {"type": "string"}}, []),
    ("fetch_url", "Fetch a page of the documentation.", {"url": {"type": "string"}}, ["url"]),
    ("ask_user", "Ask the person a question.", {"question": {"type": "string"}}, ["question"]),
    ("note", "Write a note for later.", {"text": {"type": "string"}}, ["text"]),
]

DEFINITIONS = {
    "rust": re.compile(r"^\s*(?:pub(?:\([a-z: ]+\))? )?(?:const |async |unsafe )*(?:fn|struct|enum|trait|mod|type|const|static|macro_rules!) +([A-Za-z_]\w{2,})"),
    "python": re.compile(r"^\s*(?:async )?(?:def|class) +([A-Za-z_]\w{2,})"),
}
WORDS = "cache limit buffer index result value error state parser handler reader writer config entry offset length token frame node queue batch record stream path name key".split()


def pick(rng, *options):
    return rng.choice(options)


class Session:
    """Builds one session over `files`, a list of (path, text, language)."""

    def __init__(self, rng, package, files, budget):
        self.rng, self.package, self.budget = rng, package, budget
        self.files = {path: text.split("\n") for path, text, _ in files}
        self.language = {path: language for path, _, language in files}
        self.paths = list(self.files)
        self.rust = sum(v == "rust" for v in self.language.values()) * 2 > len(files)
        self.out, self.size = [], 0
        self.seen = {}  # path -> set of line numbers shown, from 1
        self.edited = []
        self.numbering = rng.choice(["{:>4}  {}", "{:>4}  {}", "{:>5}\t{}", "{}: {}", "{:>4} | {}"])
        self.add(self.opening())

    def add(self, text):
        self.out.append(text)
        self.size += len(text)

    # Framing

    def opening(self):
        rng = self.rng
        text = rng.choice(OPENINGS).format(package=self.package, language="Rust" if self.rust else "Python")
        rules = rng.sample(RULES, rng.randint(1, 9))
        style = rng.random()
        if style < 0.4:
            text += " " + " ".join(rules)
        else:
            text += "\n\n" + rng.choice(HEADINGS) + "\n" + "\n".join("- " + rule for rule in rules)
        if style > 0.75:
            text += "\n\nThe code base\n" + "\n".join(f"- {p} ({len(self.files[p])} lines)" for p in self.paths[:6])
        tools = []
        for name, (descriptions, arguments, required) in TOOLS.items():
            described = rng.random() < 0.6
            properties = {}
            for argument, (kind, texts) in arguments.items():
                properties[argument] = {"type": kind, **({"description": rng.choice(texts)} if described else {})}
            tools.append((name, rng.choice(descriptions), properties, required))
        tools += rng.sample(EXTRA_TOOLS, rng.choice([0, 0, 1, 2, 3]))
        if rng.random() < 0.3:
            rng.shuffle(tools)
        self.tools = [
            {"type": "function", "function": {"name": name, "description": d, "parameters": {"type": "object", "properties": p, "required": r}}}
            for name, d, p, r in tools
        ]
        if rng.random() < 0.08:
            self.tools = None
        return chat.system(text, self.tools)

    def user(self, text):
        self.add(chat.turn("user", text))

    def say(self, text):
        self.add(chat.assistant(text))

    def use(self, text, name, arguments, result):
        self.add(chat.assistant(text, [(name, arguments)]))
        self.add(chat.result(result))

    # Material

    def numbered(self, path, first, last):
        self.seen.setdefault(path, set()).update(range(first, last + 1))
        lines = self.files[path]
        return "\n".join(self.numbering.format(i, lines[i - 1]) for i in range(first, last + 1))

    def definitions(self, path, shown=True):
        """(line number, name) of the definitions in the lines shown so far."""
        pattern = DEFINITIONS[self.language[path]]
        where = sorted(self.seen.get(path, ())) if shown else range(1, len(self.files[path]) + 1)
        found = []
        for i in where:
            if m := pattern.match(self.files[path][i - 1]) if i <= len(self.files[path]) else None:
                found.append((i, m.group(1)))
        return found

    def shown_path(self):
        paths = [p for p in self.paths if self.seen.get(p)]
        return self.rng.choice(paths) if paths else None

    def shown_block(self, path, most=3):
        """A run of shown lines that is not empty and occurs once in its file: (first line, text)."""
        rng, lines = self.rng, self.files[path]
        shown = [i for i in self.seen[path] if i <= len(lines) and len(lines[i - 1].strip()) > 8]
        for _ in range(12):
            if not shown:
                return None
            first = rng.choice(shown)
            last = first
            while last - first + 1 < rng.randint(1, most) and last + 1 in self.seen[path] and last < len(lines):
                last += 1
            while not lines[last - 1].strip():
                last -= 1
            text = "\n".join(lines[first - 1 : last])
            if len(text) < 400 and "\n".join(lines).count(text) == 1:
                return first, last, text
        return None

    # Steps

    def list_dir(self):
        folder = self.rng.choice(self.paths).rpartition("/")[0]
        names = sorted({p[len(folder) + 1 if folder else 0 :].split("/")[0] for p in self.paths if p.startswith(folder)})
        lines = []
        for name in names:
            full = f"{folder}/{name}" if folder else name
            size = sum(map(len, self.files[full])) + len(self.files[full]) if full in self.files else None
            lines.append(f"{name}  {size}" if size else f"{name}/")
        text = pick(self.rng, f"First I look at what is in `{folder or '.'}`.", "I will list the folder.", f"Let me see the files in {folder or '.'}.", "")
        self.use(text, "list_dir", {"path": folder or "."}, "\n".join(lines))

    def search(self, path=None, name=None):
        rng = self.rng
        if name is None:
            path = self.shown_path() if rng.random() < 0.5 and self.shown_path() else rng.choice(self.paths)
            found = self.definitions(path, shown=False)
            if not found:
                return
            name = rng.choice(found)[1]
        matches = []
        for p in self.paths:
            for i, line in enumerate(self.files[p], 1):
                if name in line and len(line) < 200:
                    matches.append(f"{p}:{i}:{line}")
        matches = matches[: rng.choice([8, 15, 30])]
        text = pick(
            rng,
            f"I will search for `{name}`.",
            f"Where is `{name}` used?",
            f"Let me find `{name}` and its callers.",
            f"Next I look for everything that touches `{name}`.",
            "",
        )
        if rng.random() < 0.6:
            arguments = {"pattern": rng.choice([name, name, rf"\b{name}\b"])}
            if rng.random() < 0.5:
                arguments["path"] = rng.choice(["src", ".", path.rpartition("/")[0] or "."])
            self.use(text, "search", arguments, "\n".join(matches) or "no matches")
        else:
            command = f"grep -rn '{name}' {path.rpartition('/')[0] or '.'}"
            self.use(text, "run_command", {"command": command}, "\n".join(matches) or "exit code 1")
        return matches

    def read(self, path=None, around=None):
        rng = self.rng
        path = path or rng.choice(self.paths)
        total = len(self.files[path])
        length = min(total, rng.choice([12, 25, 40, 60, 90, 140, 220]))
        first = 1 if around is None and rng.random() < 0.35 else rng.randint(1, max(1, total - length))
        if around is not None:
            first = max(1, around - rng.randint(0, length // 2))
        last = min(total, first + length - 1)
        text = pick(
            rng,
            f"I will read {path}.",
            f"Now lines {first} to {last} of {path}.",
            f"Let me look at `{path}`.",
            "Next the code around it.",
            f"I want to see how {path.rpartition('/')[2]} does it before I change anything.",
            f"Reading `{path}` from line {first}.",
            "",
        )
        arguments = {"path": path}
        if first > 1 or rng.random() < 0.7:
            arguments["first"] = first
        if last < total:
            arguments.update(first=first, last=last)
        self.use(text, "read_file", arguments, self.numbered(path, first, last))

    def changed(self, text, path):
        """A small change of `text`, and what was done in words."""
        rng, rust = self.rng, self.language[path] == "rust"
        names = [w for w in re.findall(r"[A-Za-z_]\w{3,}", text) if w not in ("self", "return", "None", "True", "False", "this", "from", "with", "else")]
        indent = re.match(r"\s*", text).group()
        kind = rng.random()
        if kind < 0.35 and names:
            old = rng.choice(names)
            new = rng.choice([f"{old}_{rng.choice(WORDS)}", f"{rng.choice(WORDS)}_{old}", f"checked_{old}", f"{old}2"])
            return re.sub(rf"\b{old}\b", new, text), f"rename `{old}` to `{new}` there"
        if kind < 0.5 and re.search(r"\b\d+\b", text):
            old = rng.choice(re.findall(r"\b\d+\b", text))
            new = str(rng.choice([int(old) + 1, int(old) * 2, 64, 128, 1024]))
            return re.sub(rf"\b{old}\b", new, text, count=1), f"use {new} instead of {old}"
        word = rng.choice(WORDS)
        note = f"{'//' if rust else '#'} {pick(rng, 'Keep the', 'Check the', 'Reset the', 'This needs the', 'Callers rely on the')} {word}{pick(rng, ' first.', ' here.', '.', ' unchanged.')}"
        if kind < 0.75:
            return f"{indent}{note}\n{text}", "say in a comment why it is there"
        line = f"debug_assert!(!{word}.is_empty());" if rust else f"assert {word} is not None"
        last = re.match(r"\s*", text.split("\n")[-1]).group()
        return f"{text}\n{last}{line}", f"check the {word} after it"

    def edit(self, path=None):
        rng = self.rng
        path = path or self.shown_path()
        block = path and self.shown_block(path)
        if not block:
            return
        first, last, old = block
        new, done = self.changed(old, path)
        if new == old:
            return
        text = pick(
            rng,
            f"I will {done}.",
            f"Now the change in {path}: {done}.",
            f"The line is `{old.strip()}`. I {done}." if "\n" not in old and "`" not in old else f"I {done}.",
            f"Line {first} of {path} is the place.",
            "",
        )
        lines = self.files[path]
        before = list(lines)
        lines[first - 1 : last] = new.split("\n")
        shift = len(lines) - len(before)
        self.seen[path] = {i if i <= last else i + shift for i in self.seen[path]} | set(range(first, last + shift + 1))
        style = rng.random()
        if style < 0.5:
            answer = f"{path}: replaced {last - first + 1} line(s) at line {first} by {last - first + 1 + shift} line(s)"
        elif style < 0.85:
            answer = "\n".join(difflib.unified_diff(before, lines, f"a/{path}", f"b/{path}", lineterm="", n=3))
        else:
            answer = "ok"
        self.use(text, "edit_file", {"path": path, "old": old, "new": new}, answer)
        self.edited.append((path, first, done))

    def check(self):
        rng = self.rng
        path = self.edited[-1][0] if self.edited else rng.choice(self.paths)
        found = [name for _, name in self.definitions(path, shown=False)]
        tests = [n for n in found if "test" in n.lower()] or [f"test_{n.lower()}" for n in found] or ["test_all"]
        tests = rng.sample(tests, min(len(tests), rng.randint(1, 5)))
        stem = path.rpartition("/")[2].rpartition(".")[0]
        fails = rng.random() < 0.3
        text = pick(rng, "Now the tests.", "I run the tests that cover it.", f"Let me check with the tests of {stem}.", "Does it still build?", "")
        seconds = rng.uniform(0.01, 3)
        if self.rust:
            module = stem if stem not in ("mod", "lib") else (path.split("/") + ["", ""])[-2]
            command = pick(rng, "cargo test", f"cargo test {module}", f"cargo test -q --lib {module}::", "cargo test 2>&1 | tail -n 20")
            names = [f"{module}::tests::{t}" for t in tests]
            status = [f"test {n} ... {'FAILED' if fails and i == 0 else 'ok'}" for i, n in enumerate(names)]
            head = f"   Compiling {self.package.rpartition('-')[0] or self.package} v{self.package.rpartition('-')[2]}\n    Finished `test` profile [unoptimized + debuginfo] target(s) in {seconds:.2f}s\n"
            body = f"\nrunning {len(names)} test{'s' * (len(names) != 1)}\n" + "\n".join(status) + "\n"
            if fails:
                left, right = rng.randint(0, 40), rng.randint(41, 99)
                body += (
                    f"\nfailures:\n\n---- {names[0]} stdout ----\n\nthread '{names[0]}' panicked at {path}:{rng.randint(1, len(self.files[path]))}:9:\n"
                    f"assertion `left == right` failed\n  left: {left}\n right: {right}\nnote: run with `RUST_BACKTRACE=1` environment variable to display a backtrace\n\n\n"
                    f"failures:\n    {names[0]}\n"
                )
            body += f"\ntest result: {'FAILED' if fails else 'ok'}. {len(names) - fails} passed; {int(fails)} failed; 0 ignored; 0 measured; {rng.randint(0, 90)} filtered out; finished in {seconds:.2f}s"
            answer = (head if rng.random() < 0.5 else "") + body
        else:
            command = pick(rng, "python -m pytest -q", f"pytest tests/test_{stem}.py", f"python -m pytest -q -k {stem}", "python -m unittest")
            answer = f"{'F' if fails else '.'}{'.' * (len(tests) - 1)}{' ' * 6}[100%]\n"
            if fails:
                answer += f"=== FAILURES ===\n___ {tests[0]} ___\n\n    def {tests[0]}():\n>       assert {rng.choice(WORDS)} == {rng.randint(0, 9)}\nE       AssertionError\n\n{path}:{rng.randint(1, len(self.files[path]))}: AssertionError\n=== short test summary info ===\nFAILED {path}::{tests[0]}\n{1} failed, {len(tests) - 1} passed in {seconds:.2f}s"
            else:
                answer += f"{len(tests)} passed in {seconds:.2f}s"
        self.use(text, "run_command", {"command": command}, answer)
        if fails:
            self.fix_after(path, tests[0])

    def fix_after(self, path, test):
        self.search(path, test) if self.rng.random() < 0.5 else self.read(path)
        if self.rng.random() < 0.7:
            self.edit(path if self.seen.get(path) else None)

    def write(self):
        rng = self.rng
        path = self.shown_path()
        found = [name for _, name in self.definitions(path)] if path else []
        if not found:
            return
        names = rng.sample(found, min(len(found), rng.randint(1, 4)))
        stem = path.rpartition("/")[2].rpartition(".")[0]
        if self.language[path] == "rust":
            crate = self.package.rpartition("-")[0].replace("-", "_")
            body = "".join(f"\n#[test]\nfn {n.lower()}_is_there() {{\n    let _ = {crate}::{stem}::{n};\n}}\n" for n in names)
            target, content = f"tests/{stem}_names.rs", f"//! Names of `{stem}` that callers use.\n{body}"
        else:
            module = path.rpartition(".")[0].replace("/", ".")
            body = "".join(f"\n\ndef test_{n.lower()}_is_there():\n    assert {n} is not None\n" for n in names)
            target, content = f"tests/test_{stem}_names.py", f"from {module} import {', '.join(names)}\n{body}"
        text = pick(rng, f"I add a test for {', '.join(f'`{n}`' for n in names)}.", f"A new file {target} keeps these names.", "")
        self.use(text, "write_file", {"path": target, "content": content}, f"{target}: {content.count(chr(10))} lines written")

    def recall(self):
        """A question about what was shown, answered word for word."""
        rng = self.rng
        path = self.shown_path()
        if not path:
            return
        found = self.definitions(path)
        kind = rng.random()
        if kind < 0.3 and found:
            run = found[: rng.randint(3, 25)]
            self.user(pick(rng, f"Which names does {path} define, in the part you read?", f"List the definitions you saw in `{path}`.", f"Name what {path} defines, in order."))
            self.say(pick(rng, f"In {path}:\n", f"`{path}` defines, in order:\n", "These:\n") + "\n".join(f"- `{name}` (line {i})" for i, name in run))
        elif kind < 0.55 and found:
            i, name = rng.choice(found)
            self.user(pick(rng, f"Where is `{name}` defined?", f"Show me the definition of {name} again.", f"What is `{name}`?"))
            self.say(f"`{name}` is defined in {path}, line {i}:\n\n```\n{self.files[path][i - 1]}\n```")
        else:
            block = self.shown_block(path, rng.choice([1, 4, 10]))
            if not block:
                return
            first, last, text = block
            where = f"line {first}" if first == last else f"lines {first} to {last}"
            self.user(pick(rng, f"Quote {where} of {path}.", f"What is in {where} of `{path}`?", f"Repeat {where} of {path} exactly."))
            self.say(f"{where.capitalize()} of {path}:\n\n```\n{text}\n```")

    def task(self):
        rng = self.rng
        path = rng.choice(self.paths)
        found = self.definitions(path, shown=False)
        if not found:
            return self.user(f"Have a look at {path} and tell me what it does.")
        i, name = rng.choice(found)
        word = rng.choice(WORDS)
        self.user(
            pick(
                rng,
                f"`{name}` in {path} does not handle an empty {word}. Find out why and fix it.",
                f"Please look at {name} and add a check for the {word}.",
                f"The {word} that `{name}` returns is off by one. Reproduce it, then repair it.",
                f"Where is `{name}` used? I want to change its {word}.",
                f"Add a comment to {name} that says what the {word} is for.",
                f"In {path}, `{name}` is called with a {word} that may be missing.\n\nFind the callers and make sure each checks it.",
                f"Rename the {word} in `{name}` ({path}).",
                f"Read {path} and explain {name} to me.",
            )
        )
        if rng.random() < 0.5:
            self.search(path, name)
        self.read(path, around=i)

    def close(self):
        rng = self.rng
        if self.edited:
            path, line, done = self.edited[-1]
            changes = [f"- {p}, line {n}: {d}" for p, n, d in self.edited[-4:]]
            text = pick(
                rng,
                f"Done. In {path}, line {line}: {done}.",
                "Fixed. What I changed:\n" + "\n".join(changes),
                f"The change is in {path}: {done}. The tests pass.",
                "Summary:\n" + "\n".join(changes) + "\n\nI left everything else alone.",
            )
        else:
            path = self.shown_path() or rng.choice(self.paths)
            names = [n for _, n in self.definitions(path)][:4]
            text = f"I read {path}." + (f" It defines {', '.join(f'`{n}`' for n in names)}." if names else "") + pick(rng, " Nothing was changed.", " I changed nothing.", "")
        self.say(text)
        self.edited = []

    def text(self):
        rng = self.rng
        steps = [(self.read, 5), (self.edit, 5), (self.search, 2), (self.list_dir, 1), (self.check, 2), (self.write, 0.5)]
        actions, weights = zip(*steps)
        if self.tools is None:
            return self.plain()
        while self.size < self.budget:
            self.task()
            for _ in range(rng.randint(1, 9)):
                rng.choices(actions, weights)[0]()
            self.close()
            for _ in range(rng.choice([0, 0, 1, 1, 2, 4])):
                self.recall()
        return "".join(self.out)

    def plain(self):
        """Without tools: the files stand in the user's message."""
        while self.size < self.budget:
            path = self.rng.choice(self.paths)
            total = len(self.files[path])
            first = self.rng.randint(1, max(1, total - 60))
            last = min(total, first + self.rng.randint(10, 120))
            self.seen.setdefault(path, set()).update(range(first, last + 1))
            self.user(f"This is {path} from line {first}:\n\n```\n" + "\n".join(self.files[path][first - 1 : last]) + "\n```\n\n" + pick(self.rng, "What does it define?", "Which names are in it?", "Summarise it."))
            names = [n for _, n in self.definitions(path)]
            self.say(f"{path} defines {', '.join(f'`{n}`' for n in names[:12])}." if names else f"This part of {path} defines nothing.")
            for _ in range(3):
                self.recall()
        return "".join(self.out)


def write_session(seed, package, files, budget):
    """One session of about `budget` characters. Files are (path, text, language)."""
    rng = random.Random(seed)
    files = rng.sample(files, min(len(files), rng.randint(2, 10)))
    return Session(rng, package, files, budget).text()
