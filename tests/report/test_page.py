"""The page in a real browser; skipped where there is none. No test reaches for the network."""

import json
import re
import shutil
import sys

import pytest

from raysync.errors import ConfigError
from raysync.results import page
from raysync.results.collection import collect
from raysync.results.figures import Figure
from raysync.results.figures.colours import COLOURS
from raysync.results.ranking import rank, rank_all
from raysync.results.sentences import answer
from raysync.results.tables import tables_of
from tests.builders.files import edit

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
DRAWN = "html[data-drawn=yes]"


@pytest.fixture(scope="module")
def executable():
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        pytest.skip(f"no browser here: none of {', '.join(BROWSERS)} is on the path")
    return found


@pytest.fixture(scope="module")
def browser(executable):
    driver = pytest.importorskip("playwright.sync_api")
    with driver.sync_playwright() as started:
        chromium = started.chromium.launch(executable_path=executable, args=list(FLAGS))
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def file(runs, tmp_path_factory):
    """The page of runs under faults, one scenario."""
    path = tmp_path_factory.mktemp("page") / "report.html"
    page.write_html(runs, path)
    return path


@pytest.fixture(scope="module")
def sweep_file(sweep, tmp_path_factory):
    """The page of a sweep: two scenarios, a run that diverged, a trial that left no record."""
    path = tmp_path_factory.mktemp("page") / "sweep.html"
    page.write_html(sweep, path)
    return path


@pytest.fixture
def opened(browser):
    """`opened(file, width=1280, theme="light")`: the page, all figures drawn; at the end it must
    not have complained, nor asked for anything.
    """
    tabs, complaints = [], []

    def open_page(file, width=1280, theme="light"):
        def note_request(request):
            if request.url != file.as_uri() and not request.url.startswith(("data:", "blob:")):
                complaints.append(f"asked for {request.url}")

        size = {"width": width, "height": 900}
        tab = browser.new_page(viewport=size, color_scheme=theme, has_touch=width < 600)
        tab.on("console", lambda message: complaints.append(f"{message.type}: {message.text}"))
        tab.on("pageerror", lambda error: complaints.append(str(error)))
        tab.on("request", note_request)
        tab.goto(file.as_uri())
        tab.wait_for_selector(DRAWN)
        tabs.append(tab)
        return tab

    yield open_page
    for tab in tabs:
        tab.close()
    assert complaints == []


def data_of(tab, script, key):
    """Something of the Plotly graph in a figure."""
    return tab.locator(f"#{key} .plot").evaluate(script)


# ---- in the browser ----


def test_the_answer_and_the_table_are_those_of_the_frames(opened, file, runs):
    tab = opened(file)
    assert tab.locator(".answer").inner_text() == answer(rank(runs))
    [table] = tables_of(runs, rank(runs))
    rows = tab.locator(".paradigms tbody tr")
    assert rows.count() == len(table.rows)
    headings = tab.locator(".paradigms thead th").all_inner_texts()
    assert headings == ["paradigm", *(column.heading for column in table.columns)]
    for number, row in enumerate(table.rows.values()):
        texts = [
            " ".join(text.split()) for text in rows.nth(number).locator("td").all_inner_texts()
        ]
        assert texts == [column.cell(row) for column in table.columns]


def test_every_figure_is_drawn_from_its_frames(opened, file, runs):
    tab = opened(file)
    figures = page.figures_in(runs, "")
    assert [
        tab.locator("figure").nth(number).get_attribute("data-key")
        for number in range(len(figures))
    ] == [figure.key for figure in figures]
    for figure in figures:
        place = tab.locator(f"#{figure.key}")
        assert place.locator("figcaption").inner_text() == figure.caption
        assert place.locator("h4").inner_text() == figure.title
        drawn = data_of(
            tab, "plot => plot.data.map(trace => [trace.x, trace.legendgroup ?? null])", figure.key
        )
        assert drawn == [[list(trace["x"]), trace.get("legendgroup")] for trace in figure.traces]
        marks = place.locator(
            ".plot .js-line, .plot .bars path, .plot .points path, .plot .textpoint"
        ).count()
        assert marks > 0, f"{figure.key} is empty"
        box = place.locator(".plot .main-svg").first.bounding_box()
        assert box["height"] > 100
        assert box["width"] > 300


def test_hiding_a_paradigm_hides_it_in_every_figure(opened, file):
    tab = opened(file)
    visible = (
        "plot => plot.data.filter(trace => trace.visible !== false).map(trace => trace.legendgroup)"
    )
    keys = [figure.get_attribute("data-key") for figure in tab.locator("figure").all()]
    before = {key: data_of(tab, visible, key) for key in keys}
    height = tab.locator("#timeline .plot").bounding_box()["height"]
    chip = tab.locator(".chips button").nth(1)
    chip.click()
    assert chip.get_attribute("aria-pressed") == "false"
    for key in keys:
        assert data_of(tab, visible, key) == [group for group in before[key] if group != "1"]
    assert tab.locator("#timeline .plot").bounding_box()["height"] < height
    assert data_of(tab, "plot => plot._fullLayout.yaxis._categories.length", "timeline") == 8
    chip.click()
    assert {key: data_of(tab, visible, key) for key in keys} == before
    assert tab.locator("#timeline .plot").bounding_box()["height"] == height


def test_a_button_shows_another_part(opened, file):
    tab = opened(file)
    last = tab.locator("#timeline .views button").last
    last.click()
    shown = data_of(tab, "plot => plot.layout.xaxis.range", "timeline")
    assert shown == [float(last.get_attribute("data-low")), float(last.get_attribute("data-high"))]
    assert tab.locator("#timeline .views [aria-pressed=true]").inner_text() == last.inner_text()
    tab.locator("#timeline .views button").first.click()
    assert data_of(tab, "plot => plot.layout.xaxis.range[0]", "timeline") == 0


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
def test_it_fits_and_has_its_theme(opened, file, width, theme):
    tab = opened(file, width, theme)
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    red, green, blue = (int(COLOURS[theme]["page"][at : at + 2], 16) for at in (1, 3, 5))
    assert (
        tab.evaluate("getComputedStyle(document.body).backgroundColor")
        == f"rgb({red}, {green}, {blue})"
    )
    colours = (
        "plot => [plot.layout.font.color, plot.data.find(trace => trace.legendgroup === '1' &&"
        " trace.line).line.color]"
    )
    assert data_of(tab, colours, "accuracy-time") == [COLOURS[theme]["text"], COLOURS[theme]["1"]]
    right = tab.locator("figure").evaluate_all(
        "all => all.map(one => one.getBoundingClientRect().right)"
    )
    inside = tab.locator(".main-svg").evaluate_all(
        "all => all.map(one => one.getBoundingClientRect().right)"
    )
    assert max(right + inside) <= width


def test_a_long_scenario_fits_a_phone(opened, sweep_file):
    tab = opened(sweep_file, 400)
    rename = "(option, name) => { option.text = name }"
    tab.locator("#scenario option").first.evaluate(rename, "model=mlp(hidden=[128, 128]), " * 4)
    assert tab.evaluate("document.documentElement.scrollWidth") <= 400


def test_the_theme_can_be_chosen(opened, file):
    tab = opened(file, theme="light")
    tab.locator("#theme").select_option("dark")
    tab.wait_for_selector(DRAWN)
    assert data_of(tab, "plot => plot.layout.font.color", "spending") == COLOURS["dark"]["text"]
    tab.locator("#theme").select_option("")
    tab.wait_for_selector(DRAWN)
    assert data_of(tab, "plot => plot.layout.font.color", "spending") == COLOURS["light"]["text"]


def test_on_paper_everything_is_there_and_light(opened, file):
    tab = opened(file, theme="dark")
    tab.evaluate("dispatchEvent(new Event('beforeprint'))")
    tab.emulate_media(media="print")
    assert data_of(tab, "plot => plot.layout.font.color", "spending") == COLOURS["light"]["text"]
    widths = tab.locator("figure").evaluate_all(
        "all => all.map(one => one.getBoundingClientRect().width)"
    )
    drawn = tab.locator("figure .plot").evaluate_all("all => all.map(one => one.layout.width)")
    assert all(plot <= width for plot, width in zip(drawn, widths, strict=True))
    tab.emulate_media(media="screen")
    tab.evaluate("dispatchEvent(new Event('afterprint'))")
    tab.wait_for_selector(DRAWN)
    assert data_of(tab, "plot => plot.layout.font.color", "spending") == COLOURS["dark"]["text"]


def test_scenarios_are_chosen_and_faults_are_said(opened, sweep_file, sweep):
    tab = opened(sweep_file)
    scenarios = list(sweep.scenarios)
    assert tab.locator("article .each").all_inner_texts() == list(map(answer, rank_all(sweep)))
    assert tab.locator("#scenario option").all_inner_texts() == scenarios
    for number, scenario in enumerate(scenarios):
        tab.locator("#scenario").select_option(str(number))
        tab.wait_for_selector(
            f".scenario[data-scenario='{number}'] figure:last-child[data-drawn=yes]"
        )
        shown = [
            one.get_attribute("data-key") for one in tab.locator("figure").all() if one.is_visible()
        ]
        assert shown == [figure.key for figure in page.figures_in(sweep, scenario)]
    tab.locator("summary", has_text="All runs").click()
    assert tab.locator(".runs tbody tr").count() == len(sweep.runs)
    told = tab.locator("#repeat li").all_inner_texts()
    assert any(text.startswith("diverged at ") and "asp, seed 3" in text for text in told)
    assert any(
        text.startswith("failed: ") and "asp, seed 4: no place for it" in text for text in told
    )
    early = {text.strip(" ()\n") for text in tab.locator(".paradigms .bad").all_inner_texts()}
    assert early == {"1 diverged, 1 failed"}


# ---- without one ----


def test_what_a_user_writes_is_text(own_copy, tmp_path):
    """Nothing of a file becomes markup, in the page or inside its data."""
    evil = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"
    published = {"source": evil, "note": evil, "rows": {"bsp": {"final_accuracy": 0.5}}}
    note = {"type": "Note", "kind": evil, "worker": "fast-0#1", "values": {evil: evil}}
    for record in own_copy.iterdir():
        edit(record / "config.yaml", published=published)
        edit(record / "summary.json", status="failed", error=evil, model=evil)
        journal = record / "journal.jsonl"
        text = journal.read_text()
        assert '"decisions":[' in text
        journal.write_text(text.replace('"decisions":[', f'"decisions":[{json.dumps(note)}, ', 1))
    path = tmp_path / "report.html"
    page.write_html(collect([own_copy]), path)
    text = path.read_text(encoding="utf-8")
    assert "&lt;/script&gt;" in text
    assert "<script>alert" not in text
    assert "<img" not in text
    assert text.count("</script>") == text.replace("<scripts", "").count("<script")


def test_no_figure_can_end_its_script():
    figure = Figure("key", "section", "title", "caption.", [{"text": ["</script>", "<!--"]}])
    assert "<" not in page.figure_json(figure)
    assert json.loads(page.figure_json(figure))["traces"] == figure.traces


def test_published_values_are_on_the_page(own_copy, tmp_path):
    source = "Someone 2020, Table 1"
    rows = {"bsp": {"final_accuracy": 0.5, "seconds": 10.0}, "asp": {"final_accuracy": 0.4}}
    for record in own_copy.iterdir():
        published = {"source": source, "relative_to": "bsp", "rows": rows}
        edit(record / "config.yaml", published=published)
    collection = collect([own_copy])
    page.write_html(collection, tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    _, beside = tables_of(collection, rank(collection))
    cells = beside.frame().loc["asp"]
    assert cells["final accuracy / bsp, published"] == "0.800"
    for column in beside.columns:
        assert f">{column.heading}</th>" in text
        assert f">{cells[column.heading].partition(' (')[0]}</span>" in text
    assert source in text


def test_it_is_one_small_file(file, sweep_file):
    for path in (file, sweep_file):
        text = path.read_text(encoding="utf-8")
        assert len(text) < 2_500_000
        assert "default-src 'none'" in text
        assert not re.search(r"<(link|img|iframe|script src)", text[: text.index("<noscript>")])


def test_the_vendored_bundle_is_the_one_that_its_page_names():
    from hashlib import sha256
    from importlib.resources import files

    folder = files("raysync.results") / "vendor"
    bundle = (folder / "plotly-basic.min.js").read_bytes()
    assert sha256(bundle).hexdigest() in (folder / "README.md").read_text()
    assert b"MIT" in (folder / "plotly-LICENSE.txt").read_bytes()
    assert b"</script" not in bundle


# ---- pictures ----


def test_pictures_need_kaleido(runs, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "kaleido", None)
    with pytest.raises(ConfigError, match=r"pip install 'raysync\[png\]'"):
        page.write_png(runs, tmp_path / "pictures")
    assert not (tmp_path / "pictures").exists()


def test_pictures_need_a_browser(runs, tmp_path, monkeypatch):
    kaleido = pytest.importorskip("kaleido")
    from kaleido.errors import ChromeNotFoundError

    def none_found(*_, **__):
        raise ChromeNotFoundError

    monkeypatch.setattr(kaleido, "write_fig_from_object_sync", none_found)
    with pytest.raises(ConfigError, match="need Chrome or Chromium"):
        page.write_png(runs, tmp_path / "pictures")


def test_pictures(runs, tmp_path, monkeypatch, executable):
    pytest.importorskip("kaleido")
    figures = page.figures_in(runs, "")
    monkeypatch.setattr(page, "figures_in", lambda *_: [figures[0], figures[3]])
    written = page.write_png(runs, tmp_path / "pictures")
    assert [path.name for path in written] == ["accuracy-time.png", "spending.png"]
    for path in written:
        head = path.read_bytes()[:24]
        assert head.startswith(b"\x89PNG")
        assert int.from_bytes(head[16:20], "big") == page.PICTURE_WIDTH * page.PICTURE_SCALE
