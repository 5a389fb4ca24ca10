"""Grafana's dashboard model (kinds/dashboard and the panels' panelcfg), as far as our dashboards use it; all else is refused."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

Uid = Annotated[str, StringConstraints(min_length=1, max_length=40, pattern=r"^[a-zA-Z0-9_-]+$")]
Colour = Literal["green", "orange", "red", "blue", "super-light-blue"]
Calc = Literal["lastNotNull", "last", "min", "max", "mean"]


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class DataSource(Strict):
    type: Literal["prometheus"]
    uid: Literal["${datasource}"]


class GridPos(Strict):
    x: Annotated[int, Field(ge=0, lt=24)]
    y: Annotated[int, Field(ge=0)]
    w: Annotated[int, Field(gt=0, le=24)]
    h: Annotated[int, Field(gt=0)]

    @model_validator(mode="after")
    def is_inside(self):
        assert self.x + self.w <= 24, f"x {self.x} + w {self.w} is over 24 columns"
        return self


class Target(Strict):
    datasource: DataSource
    editorMode: Literal["code"]
    expr: Annotated[str, StringConstraints(min_length=1)]
    format: Literal["time_series", "table"]
    instant: bool
    range: bool
    legendFormat: str
    refId: Annotated[str, StringConstraints(pattern=r"^[A-Z]$|^Limit$")]

    @model_validator(mode="after")
    def is_one_kind(self):
        assert self.instant != self.range
        return self


class Step(Strict):
    color: Colour
    value: float | int | None


class Thresholds(Strict):
    mode: Literal["absolute"]
    steps: list[Step]

    @model_validator(mode="after")
    def are_sorted(self):
        values = [step.value for step in self.steps]
        assert values[0] is None, "the first step has no value: it holds from minus infinity"
        assert None not in values[1:]
        assert values[1:] == sorted(set(values[1:]))
        return self


class Mapped(Strict):
    text: str
    color: Colour
    index: int


class Mapping(Strict):
    type: Literal["value"]
    options: dict[str, Mapped]


class FieldColour(Strict):
    mode: Literal["palette-classic", "thresholds", "fixed"]
    fixedColor: Colour | None = None


class Scale(Strict):
    type: Literal["linear", "log"]
    log: Literal[2, 10] | None = None


class Stacking(Strict):
    group: str
    mode: Literal["none", "normal"]


class Lines(Strict):
    """common.GraphFieldConfig"""

    axisPlacement: Literal["auto"]
    drawStyle: Literal["line"]
    fillOpacity: Annotated[int, Field(ge=0, le=100)]
    lineInterpolation: Literal["linear"]
    lineWidth: Annotated[int, Field(ge=0, le=10)]
    pointSize: int
    scaleDistribution: Scale
    showPoints: Literal["auto"]
    spanNulls: bool
    stacking: Stacking


class Defaults(Strict):
    color: FieldColour | None = None
    custom: Lines | None = None
    mappings: list[Mapping] = []
    max: int | None = None
    min: int | None = None
    noValue: str | None = None
    thresholds: Thresholds | None = None
    unit: str | None = None


UNITS = {"none", "short", "s", "bytes", "Bps", "percentunit", "dateTimeFromNow"}
PROPERTIES = {
    "unit": str,
    "mappings": list[Mapping],
    "thresholds": Thresholds,
    "color": FieldColour,
    "custom.lineStyle": dict[str, Any],
    "custom.lineWidth": int,
    "custom.fillOpacity": int,
    "custom.fillBelowTo": str,
    "custom.cellOptions": dict[str, str],
}


class Matcher(Strict):
    id: Literal["byFrameRefID", "byName", "byRegexp"]
    options: str


class Property(Strict):
    id: str
    value: Any

    @model_validator(mode="after")
    def is_known(self):
        from pydantic import TypeAdapter

        TypeAdapter(PROPERTIES[self.id]).validate_python(self.value, strict=True)
        return self


class Override(Strict):
    matcher: Matcher
    properties: list[Property]


class FieldConfig(Strict):
    defaults: Defaults
    overrides: list[Override]

    @model_validator(mode="after")
    def units_are_known(self):
        units = [p.value for o in self.overrides for p in o.properties if p.id == "unit"]
        for unit in filter(None, [self.defaults.unit, *units]):
            assert unit in UNITS or unit.startswith("suffix: "), unit
        return self


class Legend(Strict):
    calcs: list[Calc]
    displayMode: Literal["list", "table"]
    placement: Literal["bottom", "right"]
    showLegend: bool


class Tooltip(Strict):
    mode: Literal["single", "multi", "none"]
    sort: Literal["none", "asc", "desc"]


class Reduce(Strict):
    calcs: list[Calc]
    fields: str
    values: bool


class SeriesOptions(Strict):
    legend: Legend
    tooltip: Tooltip


class TrendOptions(SeriesOptions):
    xField: str


class StatOptions(Strict):
    reduceOptions: Reduce
    orientation: Literal["auto", "horizontal", "vertical"]
    colorMode: Literal["value", "background", "none"]
    graphMode: Literal["none", "area"]
    justifyMode: Literal["auto", "center"]
    textMode: Literal["auto", "value", "value_and_name", "name", "none"]


class GaugeOptions(Strict):
    reduceOptions: Reduce
    orientation: Literal["auto"]
    showThresholdLabels: bool
    showThresholdMarkers: bool


class BarOptions(Strict):
    reduceOptions: Reduce
    orientation: Literal["horizontal"]
    displayMode: Literal["basic", "gradient", "lcd"]
    namePlacement: Literal["auto", "top", "left", "hidden"]
    showUnfilled: bool
    valueMode: Literal["color", "text", "hidden"]


class StateOptions(SeriesOptions):
    alignValue: Literal["left", "center", "right"]
    mergeValues: bool
    rowHeight: Annotated[float, Field(le=1)]
    showValue: Literal["auto", "always", "never"]


class TableOptions(Strict):
    cellHeight: Literal["sm", "md", "lg"]
    showHeader: bool


class TextOptions(Strict):
    mode: Literal["markdown"]
    content: Annotated[str, StringConstraints(min_length=1)]


OPTIONS = {
    "timeseries": SeriesOptions,
    "trend": TrendOptions,
    "stat": StatOptions,
    "gauge": GaugeOptions,
    "bargauge": BarOptions,
    "state-timeline": StateOptions,
    "table": TableOptions,
    "text": TextOptions,
}
TRANSFORMATIONS = {
    "merge": set(),
    "organize": {"excludeByName", "indexByName", "renameByName"},
    "groupingToMatrix": {"rowField", "columnField", "valueField", "emptyValue"},
    "convertFieldType": {"conversions", "fields"},
    "sortBy": {"fields", "sort"},
}


class Transformation(Strict):
    id: str
    options: dict[str, Any]

    @model_validator(mode="after")
    def has_its_options(self):
        assert set(self.options) == TRANSFORMATIONS[self.id]
        return self


class PanelLink(Strict):
    title: str
    url: Annotated[str, StringConstraints(pattern=r"^/d/trimtab-[a-z]+\?")]
    targetBlank: bool


class RowPanel(Strict):
    id: int
    type: Literal["row"]
    title: Annotated[str, StringConstraints(min_length=1)]
    collapsed: Literal[False]
    gridPos: GridPos
    panels: Annotated[list[Any], Field(max_length=0)]


class Panel(Strict):
    id: Annotated[int, Field(gt=0)]
    type: Literal["timeseries", "trend", "stat", "gauge", "bargauge", "state-timeline", "table", "text"]
    title: str
    description: str
    datasource: DataSource | None = None
    gridPos: GridPos
    fieldConfig: FieldConfig
    options: dict[str, Any]
    targets: list[Target] = []
    transformations: list[Transformation] = []
    interval: str | None = None
    maxDataPoints: int | None = None
    repeat: str | None = None
    repeatDirection: Literal["h", "v"] | None = None
    maxPerRow: int | None = None
    links: list[PanelLink] = []
    transparent: bool = False

    @model_validator(mode="after")
    def is_whole(self):
        OPTIONS[self.type].model_validate(self.options)
        refs = [target.refId for target in self.targets]
        assert len(refs) == len(set(refs)), f"{self.title}: {refs}"
        if self.type != "text":
            assert self.targets
            assert self.title
            assert self.description
            assert self.datasource
        for override in self.fieldConfig.overrides:
            if override.matcher.id == "byFrameRefID":
                assert override.matcher.options in refs, f"{self.title}: an override for a query that it has not"
        return self


class Annotation(Strict):
    datasource: DataSource
    enable: bool
    expr: str
    iconColor: Colour
    name: str
    titleFormat: str


class Annotations(Strict):
    list: list[Annotation]


class DashboardLink(Strict):
    type: Literal["dashboards"]
    tags: list[str]
    title: str
    asDropdown: bool
    includeVars: bool
    keepTime: bool
    targetBlank: bool
    icon: str
    tooltip: str
    url: str


class DataSourceVariable(Strict):
    type: Literal["datasource"]
    name: str
    label: str
    query: Literal["prometheus"]
    hide: Literal[0, 1, 2]
    refresh: Literal[0, 1, 2]


class VariableQuery(Strict):
    query: str
    refId: str


class Current(Strict):
    text: list[str] | str
    value: list[str] | str


class QueryVariable(Strict):
    type: Literal["query"]
    name: str
    label: str
    datasource: DataSource
    definition: str
    query: VariableQuery
    refresh: Literal[0, 1, 2]
    sort: int
    multi: bool
    includeAll: bool
    allValue: str
    current: Current
    hide: Literal[0, 1, 2]


class Option(Strict):
    text: str
    value: str
    selected: bool


class CustomVariable(Strict):
    type: Literal["custom"]
    name: str
    label: str
    query: str
    options: list[Option]
    current: Current
    multi: bool
    includeAll: bool
    hide: Literal[0, 1, 2]


Variable = Annotated[DataSourceVariable | QueryVariable | CustomVariable, Field(discriminator="type")]


class Templating(Strict):
    list: list[Variable]


class TimeRange(Strict):
    from_: Annotated[str, Field(alias="from")]
    to: str


class Dashboard(Strict):
    uid: Uid
    title: Annotated[str, StringConstraints(min_length=1)]
    description: str
    tags: list[str]
    schemaVersion: Annotated[int, Field(ge=36, le=41)]
    editable: bool
    graphTooltip: Literal[0, 1, 2]
    refresh: str
    time: TimeRange
    timezone: Literal["browser", "utc"]
    links: list[DashboardLink]
    annotations: Annotations
    templating: Templating
    panels: list[RowPanel | Panel]

    @model_validator(mode="after")
    def panels_stand_apart(self):
        numbers = [panel.id for panel in self.panels]
        assert len(numbers) == len(set(numbers)), "two panels have one id"
        taken = {}
        for panel in self.panels:
            at = panel.gridPos
            for cell in ((x, y) for x in range(at.x, at.x + at.w) for y in range(at.y, at.y + at.h)):
                other = taken.setdefault(cell, panel)
                assert other is panel, f"{panel.title!r} lies over {other.title!r} at {cell}"
        return self
