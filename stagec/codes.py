"""The codes of diagnostics. A code keeps its meaning; docs/errors.md explains each, with an example.

E01 syntax, E02 names and shapes, E03 sharding, E04 plans and schedules, E05 memory, E06 traces,
E07 flags, files and plug-ins. `W` is a doubt: compilation goes on.
"""

CODES: dict[str, str] = {
    "E0101": "the text is not in the language",
    "E0102": "a reserved word is used as a name",
    "E0103": "a bracket or a string is not closed",
    "E0104": "`(` or `[` does not touch the name it applies to",
    "E0105": "not a number",
    "E0106": "nested too deeply",
    "E0107": "the file is not UTF-8 text",
    "E0208": "something is defined by way of itself",
    "E0701": "a file cannot be read",
}
