"""What pages say: the first questions first, nothing unescaped, nobody's secrets."""

from dataclasses import replace
from html.parser import HTMLParser

import pytest

from kvserving_operator.looks import Look
from kvserving_operator.web.answers import Tone, answers, judged
from kvserving_operator.web.book import MOST_TRIALS, Book, Entry
from kvserving_operator.web.history import Band
from kvserving_operator.web.pages import Pages
from kvserving_tuner.trials.plan import Plan
from operatorkit.specs import NAME, NAMESPACE, engine_spec
from operatorkit.trials import GUARDED, only_trial, put_probes, reach, ready, record, serve, trials
from operatorkit.world import World
from webkit.courses import courses
from webkit.fleet import tell

VOID = {"meta", "link", "br", "line", "circle", "path"}
HOSTILE = (
    "<script>alert(1)</script>",
    "</title><img src=x onerror=alert(1)>",
    '" onmouseover="x',
    "{{ 7*7 }}",
    "{% include '/etc/passwd' %}",
    "' or 1=1 --",
    "\u202egnp.exe",
    "&lt;b&gt;",
    "a\nb",
    "<!-- ",
    "]]>",
    "javascript:alert(1)",
    "</svg><svg onload=alert(1)>",
)


class Outline(HTMLParser):
    """Tags of a page, whether they are closed in their order, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Take in a tag that opens."""
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Take in a tag that is closed at once."""
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        """Take in a tag that closes."""
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        """Take in text."""
        self.text += data


@pytest.fixture
def book(world: World) -> Book:
    """The book of the world's controller."""
    book = Book()
    world.watchers = (book,)
    world.new_controller()
    return book


def told(name: str) -> tuple[Book, Entry, float]:
    """A book with one of the fleet."""
    book = Book()
    (course,) = (each for each in courses() if each.name == name)
    now = tell(book, course, 200)
    (entry,) = book
    return book, entry, now


def serving_page(book: Book, now: float, window: str = "1h") -> str:
    entry = book.entry(NAMESPACE, NAME)
    assert entry is not None
    return Pages().serving(entry, window, now)


async def test_a_trial_is_seen_from_its_first_look_to_its_end(world: World, book: Book) -> None:
    await ready(world)
    entry = book.entry(NAMESPACE, NAME)
    assert entry is not None
    assert "No" == answers(entry, world.clock()).tried.words
    world.put(replicas=2, **GUARDED, kvCache={"dtype": "int8"})
    await reach(world, "Running")
    tried = answers(entry, world.clock()).tried
    assert (Tone.BUSY, "Yes: auto -> int8") == (tried.tone, tried.words)
    (name,) = trials(world)
    assert tried.trial == name
    world.engines.worse["int8"] = 0.4
    await serve(world, 40)
    assert only_trial(world)["verdict"] == "RolledBack"
    found = answers(entry, world.clock())
    assert "No" == found.tried.words
    assert Tone.BAD == found.rolled_back.tone
    assert "worse" in found.rolled_back.detail
    text = Outline(serving_page(book, world.clock())).text
    assert "TrialStarted" in text
    assert "TrialRolledBack" in text
    curves = book.curves(NAMESPACE, NAME, name)
    assert curves is not None
    assert curves.curves["ServedLikelihoodShort"].points[-1].samples >= 5
    page = Pages().trial(book, entry, entry.trials[name], world.clock())
    assert "ServedLikelihoodShort as a table" in Outline(page).text


async def test_what_is_gone_is_forgotten(world: World, book: Book) -> None:
    world.put()
    await world.settle()
    assert [NAME] == [entry.name for entry in book]
    world.controller.forget(NAMESPACE, NAME)
    assert [] == list(book)


async def test_a_spec_that_cannot_be_read_is_said(world: World, book: Book) -> None:
    world.put(engine=engine_spec(maxNumSeqs=0))
    await world.tick()
    (entry,) = book
    assert "Yes: InvalidSpec" == answers(entry, world.clock()).attention.words
    Outline(Pages().fleet(book, world.clock()))
    Outline(serving_page(book, world.clock()))


async def test_tokens_prompts_and_environment_are_on_no_page(world: World, book: Book) -> None:
    secret = "TOP-SECRET-PROMPT"
    put_probes(world, "\n".join(f'{{"prompt": "{secret} {n} {"word " * 400}"}}' for n in range(40)))
    quality = {"probeSet": {"kind": "ConfigMap", "name": "probes", "key": "prompts.jsonl"}}
    await ready(world)
    environment = {"env": [{"name": "HF_TOKEN", "value": "hf-secret"}]}
    world.put(replicas=2, **GUARDED, kvCache={"dtype": "int8"}, quality=quality,
              podTemplate=environment)  # fmt: skip
    await serve(world, 20)
    (entry,) = book
    pages = [Pages().fleet(book, world.clock()), serving_page(book, world.clock(), "24h")]
    pages += [Pages().trial(book, entry, each, world.clock()) for each in entry.trials.values()]
    for page in pages:
        assert secret not in page
        assert "hf-secret" not in page
        assert "token-" not in page


@pytest.mark.parametrize("hostile", HOSTILE)
def test_whatever_a_text_says_it_stays_text(hostile: str) -> None:
    book, entry, now = told("rag")
    assert entry.serving is not None
    condition = entry.status.conditions[-1].model_copy(update={"message": hostile})
    pod = entry.status.pods[0].model_copy(update={"message": hostile, "name": hostile})
    (trial,) = entry.trials.values()
    status = trial.status.model_copy(update={"message": hostile, "summary": hostile})
    metadata = trial.metadata.model_copy(update={"name": hostile})
    entry.trials = {hostile: trial.model_copy(update={"status": status, "metadata": metadata})}
    entry.name = hostile
    entry.status = entry.status.model_copy(
        update={"conditions": (*entry.status.conditions[:-1], condition), "pods": (pod,)}
    )
    model = entry.serving.spec.model.model_copy(update={"name": hostile})
    spec = entry.serving.spec.model_copy(update={"model": model})
    entry.serving = entry.serving.model_copy(update={"spec": spec})
    entry.happenings.extend([replace(entry.happenings[-1], message=hostile, reason=hostile)])
    pages = Pages()
    (trial,) = entry.trials.values()
    harmless = {"script", "img", "iframe", "object", "b"}
    for page in (
        pages.fleet(book, now),
        pages.serving(entry, "1h", now),
        pages.trial(book, entry, trial, now),
        pages.problem(hostile, hostile, now),
    ):
        found = Outline(page)
        assert not harmless & {tag for tag, _ in found.tags}
        for _, attributes in found.tags:
            assert not [name for name in attributes if name.startswith("on") or name == "style"]
            assert not (attributes.get("href") or "").lower().startswith("javascript")
        assert hostile in found.text


def test_pages_have_landmarks_one_first_heading_and_labelled_charts() -> None:
    book, entry, now = told("chat")
    pages = Pages()
    (trial,) = entry.trials.values()
    for page in (
        pages.fleet(book, now),
        pages.serving(entry, "1h", now),
        pages.trial(book, entry, trial, now),
    ):
        tags = Outline(page).tags
        names = [tag for tag, _ in tags]
        assert [1, 1, 1, 1] == [names.count(tag) for tag in ("main", "header", "footer", "h1")]
        assert all(a.get("scope") in ("col", "row") for tag, a in tags if tag == "th")
        ids = [a["id"] for _, a in tags if "id" in a]
        assert len(ids) == len(set(ids))
        for tag, attributes in tags:
            if tag == "svg":
                assert "img" == attributes["role"]
                assert set((attributes["aria-labelledby"] or "").split()) <= set(ids)


def test_a_page_loads_nothing_from_elsewhere_and_runs_nothing() -> None:
    book, entry, now = told("chat")
    for page in (Pages().fleet(book, now), Pages().serving(entry, "6h", now)):
        for tag, attributes in Outline(page).tags:
            assert tag not in ("script", "style", "iframe", "form")
            address = attributes.get("href") or attributes.get("src") or "/"
            assert address[0] in "/#?"
            assert not address.startswith("//")


def test_curves_of_many_trials_do_not_pile_up() -> None:
    book = Book()
    shared = record("a", plan=Plan())
    (entry,) = [book._entry("team", "chat", 0.0)]
    for number in range(3 * MOST_TRIALS):
        book._add(entry, shared.model_copy(update={"name": f"t{number}"}), 0.0)
    assert MOST_TRIALS == len(book._curves)
    assert book.curves("team", "chat", f"t{3 * MOST_TRIALS - 1}") is not None


@pytest.mark.parametrize(
    ("band", "tone"),
    [
        (Band(400, 300, 400), Tone.GOOD),
        (Band(600, 400, 600), Tone.BAD),
        (Band(500, 300, 500), Tone.UNKNOWN),
        (Band(400, 400, float("inf")), Tone.BAD),
        (None, Tone.UNKNOWN),
    ],
)
def test_a_target_is_met_or_missed_only_where_the_bucket_tells(
    band: Band | None, tone: Tone
) -> None:
    assert tone == judged("TTFT", band, 400, 95).tone


def test_old_numbers_do_not_say_that_targets_are_met() -> None:
    _, entry, now = told("code")
    assert Tone.GOOD == answers(entry, now).slo.tone
    assert Tone.UNKNOWN == answers(entry, now + 600).slo.tone


async def test_a_watcher_that_fails_disturbs_no_look(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(Book):
        def looked(self, look: Look) -> None:
            raise RuntimeError("broken")

    book = Book()
    world.watchers = (Broken(), book)
    world.new_controller()
    world.put()
    await world.settle()
    assert "Serving" == world.status["reason"]
    assert [NAME] == [entry.name for entry in book]
    assert "not shown" in caplog.text
