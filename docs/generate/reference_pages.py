"""The reference pages of the configuration and of a run's report, from the schemas themselves."""

from typing import Any

from everyday_options import everyday_options
from markdown_text import items
from pydantic.json_schema import GenerateJsonSchema
from schema_lists import Schema, SchemaLists

from configs.schema import PipelineConfig
from gauntlet.core.run_report import RunReport

CONFIGURATION = """\
# Configuration

A configuration is a YAML file, or the name of a preset in `configs/`. Start with the
[everyday options](everyday-options.md). Here each key has its default, as in YAML: `null` is none.

`--set KEY.PATH=VALUE` changes one value, written as in YAML. An element of a list is named by its
number: `quantize.0.per_channel`. `gauntlet validate FILE` checks a configuration without a run.
`gauntlet validate --schema` prints the JSON Schema, which also has internal fields
(`tier: internal`).

Where a part has several kinds, `kind` chooses one. Without `kind`, `data` is `digits`, `train` is
`torch`, and `export` is what suits the framework.
"""

REPORT = """\
# report.json

Each run writes `.gauntlet/runs/RUN/report.json`. `gauntlet show --json` prints the newest. The HTML
and Markdown reports show the same record. Its JSON Schema is `docs/report.schema.json`. A field may
be added under the same `schema_version`. A change of meaning takes the next number.

Numbers that JSON cannot hold are the strings `"NaN"`, `"Infinity"` and `"-Infinity"`. The `facts`
of a stage are what it measured. Their keys differ from stage to stage.
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
    return everyday_options(schema, SchemaLists(schema, defaults=True))


def configuration() -> str:
    """Return the page of the configuration: all its fields but the internal ones."""
    schema = configuration_schema()
    lists = SchemaLists(schema, defaults=True)
    parts = {name for name, value in schema["properties"].items() if "$ref" in str(value)}
    plain = items(lists.item(schema, name) for name in schema["properties"] if name not in parts)
    blocks = [CONFIGURATION.rstrip(), "## Top level", plain]
    for name in PipelineConfig.model_fields:
        if name in parts:
            blocks += lists.sections(name)
    return "\n\n".join(blocks) + "\n"


def report() -> str:
    """Return the page of the report."""
    schema = RunReport.model_json_schema(mode="serialization")
    lists = SchemaLists(schema, defaults=False)
    blocks = [REPORT.rstrip(), "## Top level", items(lists.item(schema, name) for name in schema["properties"])]
    for name in dict.fromkeys(title.partition(".")[0] for title in lists.titles.values()):
        blocks += lists.sections(name)
    return "\n\n".join(blocks) + "\n"
