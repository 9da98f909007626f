#!/usr/bin/env python3
"""Writes man pages, bash completion and the reference of the command line, from the parsers of the programs.

    render_commands.py LOCKSTEP [--version=X] [--man=DIR] [--completion=FILE] [--markdown=DIR]

Each command prints its flags and help as JSON (launcher/command_line/command_help.h).
"""

import argparse
import json
import pathlib
import re
import subprocess

# Placeholders of values that are files or folders.
FILES = {"FILE", "FILE|LIST", "PATH"}
FOLDERS = {"DIR"}


def describe(lockstep, *command):
    text = subprocess.run([lockstep, *command, "--describe-command"], stdout=subprocess.PIPE, text=True,
                          check=True, timeout=60).stdout
    return json.loads(text)


def entries(command):
    return [entry for group in command["groups"] for entry in group["entries"]]


def value_of(entry):
    """"=FILE", or "[=FILE]" if the value may be left out."""
    value = entry["value"]
    return f"[={value[1:]}" if value.startswith("[") else f"={value}" if value else ""


def sentence(text):
    return text[0].upper() + text[1:] + ("" if text.endswith(".") else ".")


def short_name(command):
    return command["name"].split()[-1]


def blocks(text):
    """Titles, paragraphs and indented lines of a help text, as (kind, text)."""
    result = []
    for line in text.split("\n"):
        if not line.strip():
            result.append(("blank", ""))
        elif line.startswith("  "):
            if result and result[-1][0] == "lines":
                result[-1] = ("lines", result[-1][1] + "\n" + line)
            else:
                result.append(("lines", line))
        elif match := re.fullmatch(r"(Examples?|Exit code|Environment of workers|Columns):(.*)", line):
            result.append(("title", match[1]))
            if match[2]:
                result.append(("paragraph", match[2].strip()))
        elif result and result[-1][0] == "paragraph":
            result[-1] = ("paragraph", result[-1][1] + "\n" + line)
        else:
            result.append(("paragraph", line))
    return [block for block in result if block[0] != "blank"]


class ManPage:
    """The man page of a command, with its actions as sections."""

    def __init__(self, command, summary, version, others):
        name = command["name"].replace(" ", "-")
        self.lines = [f'.TH {self.quoted(name.upper())} 1 "" {self.quoted("Lockstep " + version)} "Lockstep Manual"',
                      ".SH NAME", f"{self.escaped(name)} \\- {self.escaped(summary)}",
                      ".SH SYNOPSIS", f".B {self.escaped(command['name'])}", self.escaped(command["usage"])]
        self.lines.append(".SH DESCRIPTION")
        self.text(command["description"])
        self.options(command, ".SH OPTIONS")
        if command["actions"]:
            self.lines.append(".SH COMMANDS")
        for action in command["actions"]:
            self.lines += [".TP", f".B {self.escaped(action['name'])} {self.escaped(action['usage'])}".rstrip(),
                           self.escaped(sentence(action["description"])), ".RS"]
            self.options(action, None)
            self.text(action["notes"], inside=True)
            self.lines.append(".RE")
        self.text(command["notes"])
        self.lines.append(".SH SEE ALSO")
        self.lines += [f".BR {self.escaped(other)} (1)" + ("," if other != others[-1] else "") for other in others]

    @staticmethod
    def escaped(text):
        text = text.replace("\\", "\\e").replace("-", "\\-").replace("^", "\\(ha").replace("~", "\\(ti")
        return re.sub(r"^([.'])", r"\\&\1", text, flags=re.MULTILINE)

    @classmethod
    def quoted(cls, text):
        return '"' + cls.escaped(text).replace('"', "\\(dq") + '"'

    def text(self, text, inside=False):
        """`inside` a command of the page titles are no sections."""
        for kind, body in blocks(text):
            if kind == "title":
                self.lines += [".PP", f"{body}:"] if inside else [f".SH {self.quoted(body.upper())}"]
            elif kind == "paragraph":
                self.lines += [".PP", self.escaped(body)]
            else:
                self.lines += [".PP", ".nf", self.escaped(body), ".fi"]

    def options(self, command, heading):
        """Each flag with its text, by groups."""
        if heading and entries(command):
            self.lines.append(heading)
        for group in command["groups"]:
            if group["title"]:
                self.lines.append(f".SS {self.quoted(group['title'])}")
            for entry in group["entries"]:
                self.lines += [".TP", self.label(entry)]
                for line, breaks in broken_lines(entry["text"]):
                    self.lines += [self.escaped(line)] + [".br"] * breaks

    def label(self, entry):
        if entry["is_argument"]:
            return f".I {self.quoted(entry['name'])}"
        names = [f"\\fB\\-{entry['letter']}\\fR"] if entry["letter"] else []
        names.append(f"\\fB\\-\\-{self.escaped(entry['name'])}\\fI{self.escaped(value_of(entry))}\\fR")
        return ", ".join(names)


def broken_lines(text):
    """The lines of a flag's text, and whether a new line begins after each: before "name: …", not in a sentence."""
    lines = text.split("\n")
    starts = [bool(re.match(r"[\w|-]+: ", line)) for line in lines] + [False]
    return [(line, starts[number + 1]) for number, line in enumerate(lines)]


COMPLETION = r'''# Completion of lockstep(1) for bash. Generated from the programs' parsers by scripts/render_commands.py.

# __lockstep_flags COMMAND: its flags, with '=' behind those that take a value.
__lockstep_flags() {
  case $1 in
@FLAGS@
  esac
}

# __lockstep_values COMMAND FLAG: what the value can be: words, or <file>, <folder>, <job>.
__lockstep_values() {
  case $1:$2 in
@VALUES@
  esac
}

# __lockstep_arguments COMMAND: the same for what is no flag.
__lockstep_arguments() {
  case $1 in
@ARGUMENTS@
  esac
}

__lockstep_offer() {
  local kind
  for kind in $1; do
    case $kind in
      '<file>') compopt -o filenames 2>/dev/null; mapfile -t -O ${#COMPREPLY[@]} COMPREPLY < <(compgen -f -- "$2") ;;
      '<folder>') compopt -o filenames 2>/dev/null; mapfile -t -O ${#COMPREPLY[@]} COMPREPLY < <(compgen -d -- "$2") ;;
      '<job>')
        mapfile -t -O ${#COMPREPLY[@]} COMPREPLY < <(
          compgen -W "$("${COMP_WORDS[0]}" ps 2>/dev/null | sed -n '2,$s/^\([^ ]\{1,\}\) .*/\1/p')" -- "$2") ;;
      *) mapfile -t -O ${#COMPREPLY[@]} COMPREPLY < <(compgen -W "$kind" -- "$2") ;;
    esac
  done
}

_lockstep() {
  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} command=${COMP_WORDS[1]-}
  COMPREPLY=()
  if ((COMP_CWORD == 1)); then
    __lockstep_offer '@COMMANDS@ help --help --version' "$word"
    return
  fi
  [[ $command != help ]] || { __lockstep_offer '@COMMANDS@' "$word"; return; }
  # Actions are a part of the command's name: "snapshot show".
  local i actions first=2
  actions=$(__lockstep_arguments "$command/")
  if [[ -n $actions ]]; then
    if ((COMP_CWORD == 2)); then
      __lockstep_offer "$actions --help" "$word"
      return
    fi
    command+=/${COMP_WORDS[2]}
    first=3
  fi
  # bash takes "=" for a word of its own.
  if [[ $word == = && $before == --* ]]; then
    __lockstep_offer "$(__lockstep_values "$command" "$before")" ''
    return
  elif [[ $before == = ]]; then
    __lockstep_offer "$(__lockstep_values "$command" "${COMP_WORDS[COMP_CWORD - 2]}")" "$word"
    return
  elif [[ $before == -* && $(__lockstep_flags "$command") == *" $before= "* ]]; then
    __lockstep_offer "$(__lockstep_values "$command" "$before")" "$word"
    return
  fi
  # Behind the program that `lockstep run` starts, its own words follow.
  if [[ $command == run ]]; then
    for ((i = first; i < COMP_CWORD; ++i)); do
      [[ ${COMP_WORDS[i]} != -* && ${COMP_WORDS[i]} != = && ${COMP_WORDS[i - 1]} != = ]] || continue
      [[ ${COMP_WORDS[i - 1]} == -* && $(__lockstep_flags run) == *" ${COMP_WORDS[i - 1]}= "* ]] && continue
      if declare -F _command_offset >/dev/null; then
        _command_offset "$i"
      else
        __lockstep_offer '<file>' "$word"
      fi
      return
    done
  fi
  if [[ $word == -* ]]; then
    compopt -o nospace 2>/dev/null
    local flag
    for flag in $(__lockstep_flags "$command"); do
      [[ $flag == "$word"* ]] || continue
      if [[ $flag == --*= ]]; then COMPREPLY+=("$flag"); else COMPREPLY+=("${flag%=} "); fi
    done
    return
  fi
  __lockstep_offer "$(__lockstep_arguments "$command")" "$word"
}

complete -F _lockstep lockstep
'''


def value_words(value):
    """What a placeholder offers: "0|1|2|3|MAP" offers the numbers, "DIR" folders."""
    if value in FILES:
        return "<file>"
    if value in FOLDERS:
        return "<folder>"
    return " ".join(word for word in value.split("|") if re.fullmatch(r"[a-z0-9-]+", word)) if "|" in value else ""


def argument_words(command):
    names = [entry["name"] for entry in entries(command) if entry["is_argument"]]
    if command["name"] == "lockstep run" or not names:
        return "<file>"
    kinds = ["<job>" if name == "JOB" else "<folder>" if name in ("DIR", "DIRECTORY") else "<file>"
             for name in names if name != "N"]
    return " ".join(dict.fromkeys(kinds))


def completion(commands):
    flags, values, arguments = [], [], []

    def add(key, command):
        words = []
        for entry in entries(command):
            if entry["is_argument"]:
                continue
            spellings = [f"--{entry['name']}"] + ([f"-{entry['letter']}"] if entry["letter"] else [])
            words += [spelling + ("=" if entry["value"] else "") for spelling in spellings]
            if offered := value_words(entry["value"]):
                patterns = "|".join(f"{key}:{spelling}" for spelling in spellings)
                values.append(f"    {patterns}) echo '{offered}' ;;")
        flags.append(f"    {key}) echo ' {' '.join(words)} ' ;;")
        if command["actions"]:
            arguments.append(f"    {key}/) echo '{' '.join(short_name(action) for action in command['actions'])}' ;;")
            for action in command["actions"]:
                add(f"{key}/{short_name(action)}", action)
        else:
            arguments.append(f"    {key}) echo '{argument_words(command)}' ;;")

    for command in commands:
        add(short_name(command), command)
    names = " ".join(short_name(command) for command in commands)
    return (COMPLETION.replace("@FLAGS@", "\n".join(flags)).replace("@VALUES@", "\n".join(values))
            .replace("@ARGUMENTS@", "\n".join(arguments)).replace("@COMMANDS@", names))


def markdown_prose(text):
    return re.sub(r"([_*|`])", r"\\\1", text.replace("<", "&lt;"))


def markdown_text(text):
    parts = []
    for kind, body in blocks(text):
        if kind == "title":
            parts.append(f"**{body}**")
        elif kind == "paragraph":
            parts.append(markdown_prose(body))
        else:
            lines = [line[2:] if line.startswith("  ") else line for line in body.split("\n")]
            parts.append("```text\n" + "\n".join(lines) + "\n```")
    return "\n\n".join(parts)


def markdown_table(command):
    parts = []
    for group in command["groups"]:
        if group["title"]:
            parts.append(f"**{group['title']}**\n")
        parts.append("| | |\n|---|---|")
        for entry in group["entries"]:
            name = entry["name"] if entry["is_argument"] else f"--{entry['name']}{value_of(entry)}"
            names = f"`-{entry['letter']}`, `{name}`" if entry["letter"] else f"`{name}`"
            parts.append(f"| {names} | {markdown_prose(entry['text']).replace(chr(10), ' ')} |")
        parts.append("")
    return "\n".join(parts)


def markdown(command, summary):
    parts = [f"# {command['name']}", sentence(summary),
             f"```text\n{command['name']} {command['usage']}\n```", markdown_text(command["description"])]
    if entries(command):
        parts.append(markdown_table(command))
    for action in command["actions"]:
        parts += [f"## {action['name']}", f"```text\n{action['name']} {action['usage']}\n```",
                  markdown_text(sentence(action["description"])), markdown_table(action), markdown_text(action["notes"])]
    parts.append(markdown_text(command["notes"]))
    return "\n\n".join(part for part in parts if part) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lockstep")
    parser.add_argument("--version", default="")
    parser.add_argument("--man", type=pathlib.Path)
    parser.add_argument("--completion", type=pathlib.Path)
    parser.add_argument("--markdown", type=pathlib.Path)
    options = parser.parse_args()

    overview = describe(options.lockstep)
    commands = [describe(options.lockstep, short_name(action)) for action in overview["actions"]]
    summaries = [action["description"] for action in overview["actions"]]
    pages = ["lockstep"] + [f"lockstep-{short_name(command)}" for command in commands]
    if options.man:
        options.man.mkdir(parents=True, exist_ok=True)
        summary = overview["description"].rstrip(".")
        written = [ManPage(overview, summary[0].lower() + summary[1:], options.version, pages[1:])]
        written += [ManPage(command, text, options.version, ["lockstep"]) for command, text in zip(commands, summaries)]
        for name, page in zip(pages, written):
            (options.man / f"{name}.1").write_text("\n".join(page.lines) + "\n")
    if options.completion:
        options.completion.parent.mkdir(parents=True, exist_ok=True)
        options.completion.write_text(completion(commands))
    if options.markdown:
        options.markdown.mkdir(parents=True, exist_ok=True)
        index = ["# Command line", "", "| command | |", "|---|---|"]
        for command, text in zip(commands, summaries):
            page = f"{short_name(command)}.md"
            (options.markdown / page).write_text(markdown(command, text))
            index.append(f"| [`{command['name']}`]({page}) | {text} |")
        (options.markdown / "index.md").write_text("\n".join(index) + "\n")


if __name__ == "__main__":
    main()
