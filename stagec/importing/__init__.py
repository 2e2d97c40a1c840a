"""Models and plans of others as text of ours: `stagec import`."""

from stagec.importing.model import Imported, import_configuration

__all__ = ["Imported", "import_configuration"]
