"""The reference pages of the configuration and of a run's report, from the schemas themselves."""

from typing import Any

from everyday_options import everyday_options
from pydantic.json_schema import GenerateJsonSchema
from schema_tables import INPUT, OUTPUT, Schema, SchemaTables

from configs.schema import PipelineConfig
from gauntlet.core.run_report import RunReport

CONFIGURATION = """\
# Configuration

A configuration is a YAML file, or the name of a preset in `configs/`; what it leaves out has the default given here.
[Everyday options](everyday-options.md) are those to start with. `--set KEY.PATH=VALUE` changes one value: an element of
a list is named by its number (`quantize.0.per_channel`), and a value is written as in YAML. `gauntlet validate FILE`
checks a configuration and runs nothing; `gauntlet validate --schema` prints the JSON Schema from which this page is
generated, and which also has internal fields (`tier: internal`). A value that is not allowed ends the command with exit
code 2 before anything runs.

Where a part has several kinds, `kind` chooses one. Without `kind`, `data` is `digits`, `train` is `torch`, and
`export` is what suits the framework.
"""

REPORT = """\
# report.json

Each run writes `.gauntlet/runs/RUN/report.json`; `gauntlet show --json` prints the newest. It is complete without any
server, and the HTML and Markdown reports show the same record. Its JSON Schema is `docs/report.schema.json`, from
which this page is generated. A new field may be added under the same `schema_version`; a change of meaning takes the
next number.

Numbers that JSON cannot hold are written as the strings `"NaN"`, `"Infinity"` and `"-Infinity"`. `facts` of a stage
hold what that stage measured; the keys differ from stage to stage. A check whose name is that of a configuration key,
such as `evaluate.min_accuracy`, compares `value` with that key's `limit`.
"""


class WithFactories(GenerateJsonSchema):
    """A schema in which the defaults that a function makes are there, too."""

    def get_default_value(self, schema: Any) -> Any:
        """Call the function that makes a default."""
        if "default_factory" in schema and not schema.get("default_factory_takes_data"):
            return schema["default_factory"]()
        return super().get_default_value(schema)


def configuration_schema() -> Schema:
    """Return the JSON Schema of the configuration, with all defaults."""
    schema = PipelineConfig.model_json_schema(schema_generator=WithFactories)
    for name in PipelineConfig.model_fields:  # a part that names no kind gets the usual one, so it is never required
        schema["properties"][name].setdefault("default", {})
    return schema


def everyday() -> str:
    """Return the page of the everyday options."""
    schema = configuration_schema()
    return everyday_options(schema, SchemaTables(schema, INPUT))


def configuration() -> str:
    """Return the page of the configuration: all its fields but the internal ones."""
    schema = configuration_schema()
    tables = SchemaTables(schema, INPUT)
    parts = {name for name, value in schema["properties"].items() if "$ref" in str(value)}
    plain = tables.table_of(schema, [name for name in schema["properties"] if name not in parts])
    blocks = [CONFIGURATION.rstrip(), "## Top level", plain]
    for name in PipelineConfig.model_fields:
        if name in parts:
            blocks += tables.sections(name)
    return "\n\n".join(blocks) + "\n"


def report() -> str:
    """Return the page of the report."""
    schema = RunReport.model_json_schema(mode="serialization")
    tables = SchemaTables(schema, OUTPUT)
    blocks = [REPORT.rstrip(), "## Top level", tables.table_of(schema, list(schema["properties"]))]
    for name in dict.fromkeys(title.partition(".")[0] for title in tables.titles.values()):
        blocks += tables.sections(name)
    return "\n\n".join(blocks) + "\n"
