"""What the README shows runs as it is shown."""

import doctest
import re
from pathlib import Path

README = Path(__file__).resolve().parents[1] / "README.md"


def test_python_of_the_readme_runs() -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", README.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert blocks
    names: dict[str, object] = {}  # later blocks go on where earlier ones end
    for block in blocks:
        if block.startswith(">>> "):
            test = doctest.DocTestParser().get_doctest(block, names, "README", str(README), 0)
            runner = doctest.DocTestRunner()
            runner.run(test, clear_globs=False)
            assert runner.tries and not runner.failures
            names.update(test.globs)
        else:
            exec(compile(block, str(README), "exec"), names)
    assert names["read"].calls[0].name == "get_weather"
    assert names["states"].reward.tolist() == [1, 0] and names["states"].terminated.tolist() == [True, False]
