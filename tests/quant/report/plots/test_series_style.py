from spearhead.quant.report import QualitySeries, SeriesKind
from spearhead.quant.report.plots import series_styles


def test_styles_repeat_late_and_never_across_kinds() -> None:
    counts = {SeriesKind.OURS: 21, SeriesKind.BASELINE: 35, SeriesKind.CONTROL: 7}
    series = [
        QualitySeries(name=f"{kind} {index}", kind=kind, points=())
        for index in range(35)
        for kind, count in counts.items()
        if index < count
    ]
    styles = series_styles(series)
    assert len({(style.classes, style.shape) for style in styles.values()}) == sum(counts.values())
    assert all(styles[one.name].classes.endswith(one.kind) for one in series)
