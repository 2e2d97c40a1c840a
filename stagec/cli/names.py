"""The commands of `stagec`, by their names."""

COMMANDS = {
    "batch": "make iterations of requests, by continuous batching",
    "calibrate": "make a device file from measured operators",
    "check": "prove that a set of traces can run, or say why not",
    "devices": "list the devices that ship, or show one: its numbers, tables and sources",
    "diff": "say what differs between two models, plans or sets of traces",
    "examples": "list the models that ship, with their plans",
    "expand": "write traces out of a bundle",
    "explain": "say where a number comes from",
    "fmt": "format models and plans",
    "import": "write a configuration as a model, or a launcher's flags as a plan",
    "lsp": "answer an editor, as a language server",
    "ops": "list the functions of the language, and the ops of the dialects",
    "passes": "list the passes",
    "report": "set plans side by side",
    "search": "find the best plan of a model on so many devices",
}
"""Each is a module of this package with `run(arguments) -> exit status`. Any other first word is a
model."""
