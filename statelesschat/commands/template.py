"""``template``: what a chat template compiles to, or why it does not."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from statelesschat.commands.shared import History, interrupted, quiet, refused


def template(
    source: Annotated[
        str | None,
        typer.Argument(metavar="[NAME_OR_PATH]", help="Jinja file, folder or hub name. Without it: the built-in."),
    ] = None,
    everything: Annotated[
        str | None, typer.Option("--all", metavar="DIR", help="Every Jinja file of a folder, as a table.")
    ] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(help="For Jinja files: folder or hub name. Without it: a stand-in with the file's own markers."),
    ] = None,
    history: Annotated[
        History, typer.Option(help="frozen: prefer frozen history where that writes more roles.")
    ] = History.EXACT,
    tools: Annotated[
        str | None, typer.Option(metavar="FILE", help="JSON file: a list of tool specs for the template to write.")
    ] = None,
    template_kwargs: Annotated[
        str | None,
        typer.Option(metavar="JSON", help="Variables of the template, such as '{\"enable_thinking\": false}'."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object in place of text.")] = False,
    out: Annotated[str | None, typer.Option(metavar="FILE.json", help="Write the JSON object there.")] = None,
) -> None:
    """Compile a chat template and show its class, its table of gaps and a conversation as it writes it.

    A template that cannot be compiled is shown with the conversation that says why.

    Exit code: 0 if it compiles (with --all: if every one could be looked at), 1 if it is refused, 2 for input that
    cannot be used.
    """
    quiet()
    from statelesschat.inspection.looking import look, tokenizer_of
    from statelesschat.inspection.showing import print_look, print_survey
    from statelesschat.inspection.surveying import counts_of, survey, templates_in
    from statelesschat.text.progress import progress
    from statelesschat.text.tokenizer import load_tokenizer

    try:
        if everything is not None:
            if source is not None or tools is not None or template_kwargs is not None:
                raise ValueError("--all looks at the files of a folder as they are; leave the other options out")
            if history is not History.EXACT:
                raise ValueError("--all tells which templates need frozen history by itself; leave --history out")
            if tokenizer is not None:
                load_tokenizer(tokenizer)  # once here, to say what is wrong with it
            with progress("compiling", "compiled {} of {} templates") as advance:
                looks = survey(templates_in(everything), tokenizer, advance)
            report = {"counts": counts_of(looks), "templates": [one.as_json() for one in looks]}
            _write_json(report, as_json, out)
            if not as_json:
                print_survey(looks)
            raise typer.Exit(1 if any(one.unread for one in looks) else 0)
        specs = None if tools is None else _json("--tools", Path(tools).read_text(encoding="utf-8", errors="replace"))
        variables = None if template_kwargs is None else _json("--template-kwargs", template_kwargs)
        if variables is not None and not isinstance(variables, dict):
            raise ValueError("--template-kwargs is no JSON object")
        made, described = (
            (load_tokenizer(None), "the built-in byte tokenizer") if not source else tokenizer_of(source, tokenizer)
        )
        name = source or "built-in"
        found = look(name, made, history=str(history), tools=specs, template_kwargs=variables)
    except (OSError, ValueError, TypeError) as error:
        raise refused(error) from None
    except KeyboardInterrupt:
        raise interrupted() from None
    _write_json(found.as_json(), as_json, out)
    if not as_json:
        print_look(found, described)
    raise typer.Exit(0 if found.compiles else 1)


def _json(option: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{option} is no JSON ({error})") from None


def _write_json(value: dict[str, object], as_json: bool, out: str | None) -> None:
    text = json.dumps(value, ensure_ascii=False)
    if out is not None:
        try:
            with open(out, "w", encoding="utf-8") as file:
                file.write(text + "\n")
        except OSError as error:
            raise refused(f"{out}: {error.strerror}") from None
    if as_json:
        print(text)
