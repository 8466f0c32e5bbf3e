"""Every error that a user can cause or mend: one clear line that names the place and says what to do."""

from __future__ import annotations


class FreshstackError(Exception):
    """Base of the project's own errors; its text is a single line fit for a terminal or the UI."""


class SettingsError(FreshstackError):
    """A settings or topic file is wrong: names the file, the key and what is allowed."""


class SourceError(FreshstackError):
    """A source of questions cannot be read: names the file and, where there is one, the line or offset."""


class CorpusError(FreshstackError):
    """A repository, commit or blob cannot be had: names the repository and the snapshot."""


class LakeError(FreshstackError):
    """A table cannot be read or written: names the table and the partition."""


class SchemaError(LakeError):
    """A frame does not fit its table: names the table, the columns and the rows."""


class ModelError(FreshstackError):
    """A model call failed for good: names the role, the model and the request."""


class BudgetError(ModelError):
    """A spending cap is reached: says how much is spent and how to go on."""


class EvaluationError(FreshstackError):
    """A run or qrels cannot be scored: names the question or document."""
