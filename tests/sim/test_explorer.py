"""The explorer: what its page asks is predicted as `prestep run` does, on this machine alone."""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from urllib.parse import urlencode

import pytest
from click.testing import CliRunner

from prestep import cli
from prestep.sim.analysis.prediction import Prediction
from prestep.sim.collectives.nccl import tuner as planner
from prestep.sim.errors import InputError
from prestep.sim.explorer import answers, page
from prestep.sim.explorer.answers import Explorer
from prestep.sim.explorer.knobs import scaled
from prestep.sim.explorer.server import MOST_WAITING, Server
from prestep.sim.exporters import _words as words
from prestep.sim.predict import predict
from prestep.sim.spec.load import load_scenario
from prestep.sim.studies import whatif
from prestep.sim.tools.catalog import find_scenario
from tests.browser import Page
from tests.sample import together

EXAMPLES = Path(cli.__file__).parent / "examples"


@pytest.fixture(scope="module")
def explorer() -> Explorer:
    return Explorer(find_scenario("mlp-ddp4"))


@contextlib.contextmanager
def served(explorer: Explorer) -> Iterator[Server]:
    with Server(explorer) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def get(
    server: Server, path: str, method: str = "GET", **headers: str
) -> tuple[int, str]:
    connection = http.client.HTTPConnection(
        "127.0.0.1", server.server_port, timeout=300
    )
    with contextlib.closing(connection):
        connection.request(method, path, headers=headers)
        reply = connection.getresponse()
        return reply.status, reply.read().decode()


def run(scenario: str, *sets: str) -> float:
    options = [part for item in sets for part in ("--set", item)]
    made = CliRunner().invoke(cli.main, ["run", scenario, "--json", *options])
    assert made.exit_code == 0, made.output
    return float(json.loads(made.stdout)["step_time"])


@pytest.mark.parametrize(
    "asked", [{}, {"nvlink.bandwidth": "0.125x"}, {"training.micro_batch": "64"}]
)
def test_answers_are_those_of_run(explorer: Explorer, asked: dict[str, str]) -> None:
    """The step is that of `prestep run` with the same --set, and the page says which."""
    told = explorer.answer(asked)
    assert told["mistakes"] == ""
    assert told["step_time"] == pytest.approx(
        run("mlp-ddp4", *(f"{k}={v}" for k, v in asked.items())), rel=1e-12
    )
    assert all(
        f"--set {key}={value}" in told["command"] for key, value in asked.items()
    )


@pytest.fixture(scope="module")
def layers(tmp_path_factory: pytest.TempPathFactory) -> Explorer:
    """A transformer with every kind of slider, on four hosts."""
    path = tmp_path_factory.mktemp("explorer") / "layers.toml"
    path.write_text(
        '[cluster]\nname = "dgx-h100-superpod"\nhosts = 4\n[model]\nname = "llama3-8b"\nlayers = 2\n'
        '[training]\nframework = "megatron"\nmicrobatches = 4\nmicro_batch = 1\nseq_len = 2048\n'
        "[parallel]\ntp = 4\npp = 2\ndp = 4\n",
        encoding="utf-8",
    )
    return Explorer(path)


def test_a_session_answers_as_one_question_does(layers: Explorer) -> None:
    """What was kept of earlier answers (clusters, plans, steps without times) moves no bit of a later one."""
    chance = random.Random(0)
    knobs = [knob for knob in layers.knobs if knob.key != "gpus"]
    for knob in (*knobs, *knobs[::4]):
        asked = {knob.key: chance.choice(knob.values)}
        also = chance.choice(knobs)
        asked.setdefault(also.key, chance.choice(also.values))
        told = layers.answer(asked)
        if told["mistakes"]:
            with pytest.raises(InputError):
                predict(load_scenario(layers.path, layers.sets(asked)))
        else:
            alone = predict(load_scenario(layers.path, layers.sets(asked)))
            assert told["step_time"] == alone.step_time, asked
            assert told["shares"] == shares_of(alone), asked


def shares_of(result: Prediction) -> dict[str, float]:
    return {name: spent for name, spent, _ in words.shares(result)}


def test_what_a_slider_does_not_change_is_kept(
    layers: Explorer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slower GPUs plan no communication, other layouts build their cluster once, and a headline's step runs once."""
    made: list[str] = []
    for module, name in (
        (planner, "choose"),
        (whatif, "load_fabric"),
        (answers, "execute"),
    ):
        real = getattr(module, name)
        monkeypatch.setattr(
            module, name, lambda *a, n=name, r=real, **k: made.append(n) or r(*a, **k)
        )
    fresh = Explorer(layers.path)
    assert fresh.answer({})["mistakes"] == "" and made.count("execute") == 1
    made.clear()
    fresh.answer({"gpu.clock": "0.5x"})
    assert made == ["execute"]
    for clock in ("0.75x", "1.5x"):
        made.clear()
        asked = {"parallel.dp": "8", "gpu.clock": clock}
        fresh.step(asked)
        fresh.answer(asked)
    assert made == ["execute"]


def test_nothing_is_remembered(explorer: Explorer) -> None:
    """The answer to a question does not depend on the questions before it."""
    first = explorer.answer({"nvlink.bandwidth": "0.5x"})
    explorer.answer({"training.micro_batch": "64", "nvlink.bandwidth": "8x"})
    assert explorer.answer({"nvlink.bandwidth": "0.5x"}) == first


def test_the_cluster_grows_with_the_layout() -> None:
    """More replicas are more hosts where the family scales; fewer GPUs than a host are a part of it."""
    explorer = Explorer(EXAMPLES / "superpod-fsdp.toml")
    assert explorer.sets({"parallel.dp": "1024"}) == (
        "cluster.hosts=128",
        "parallel.dp=1024",
    )
    assert explorer.sets({"parallel.dp": "4"}) == (
        "cluster.hosts=1",
        "cluster.gpus=4",
        "parallel.dp=4",
    )
    assert explorer.sets({"parallel.dp": "128", "parallel.tp": "2"}) == (
        "parallel.dp=128",
        "parallel.tp=2",
    )
    gpus = next(knob for knob in explorer.knobs if knob.key == "gpus")
    assert gpus.value == "256" and gpus.values[-1] == "1024"


def test_wrong_values_are_told_as_the_command_line_tells_them(
    explorer: Explorer,
) -> None:
    """The same text, and no answer."""
    told = explorer.answer({"training.micro_batch": "512"})
    made = CliRunner().invoke(
        cli.main, ["run", "mlp-ddp4", "--set", "training.micro_batch=512"]
    )
    assert made.exit_code == 2 and set(told) == {"mistakes"}
    assert told["mistakes"].partition(": ")[2] == made.stderr.strip().partition(": ")[2]


@pytest.mark.parametrize(
    "key",
    ["cluster.file", "model.file", "training.optimizer", "nvlink[0].bandwidth", ""],
)
def test_only_the_pages_controls_can_be_changed(explorer: Explorer, key: str) -> None:
    """No question makes the server read a file, or change what the page does not show."""
    assert "controls" in explorer.answer({key: "/etc/passwd"})["mistakes"]


def test_shares_stand_beside_those_of_the_scenario(explorer: Explorer) -> None:
    """Before and after with the difference; as the scenario is, its own alone. The same question has the same answer."""
    slow = explorer.answer({"nvlink.bandwidth": "0.125x"})
    assert (
        "with the changes" in slow["pieces"]["step"] and "+" in slow["pieces"]["step"]
    )
    assert "with the changes" not in explorer.answer({})["pieces"]["step"]
    assert explorer.answer({"nvlink.bandwidth": "0.125x"}) is slow
    for at in range(2 * answers.MOST_KEPT):
        explorer.answer({"nvlink.bandwidth": f"{at}y"})
    assert len(explorer._answers) <= answers.MOST_KEPT


@together("value", ["", "x", "-1", "0", "1e9", "9" * 400, "²", "<b>", "1.5"])
def test_no_value_breaks_the_server(explorer: Explorer, value: str) -> None:
    """Whatever is asked is an answer or a mistake."""
    for key in (
        "parallel.dp",
        "training.micro_batch",
        "nvlink.bandwidth",
        "parallel.data_parallel",
    ):
        told = explorer.answer({key: value})
        assert told["mistakes"] or told["step_time"] > 0


def test_the_server_is_for_this_machine_alone(explorer: Explorer) -> None:
    """It listens on the loopback interface; other names for it, other paths and other methods are refused."""
    with served(explorer) as server:
        assert server.server_address[0] == "127.0.0.1"
        own = f"127.0.0.1:{server.server_port}"
        status, text = get(server, "/")
        assert status == 200 and not re.search(
            r"(src|href)=\"(?!#|data:)|https?://", text
        )
        assert get(server, "/", Host="evil.example")[0] == 403
        assert get(server, "/", Host=f"evil.example:{server.server_port}")[0] == 403
        assert get(server, "/", Host=own)[0] == 200
        assert (
            get(server, "/../cli.py")[0] == 404 and get(server, "/", "POST")[0] == 501
        )
        assert get(server, "/answer?a=1&a=2")[0] == 400
        assert get(server, "/answer?cluster.file=x")[0] == 400
        status, text = get(server, f"/answer?{urlencode({'nvlink.bandwidth': '2x'})}")
        assert status == 200 and json.loads(text)["step_time"] > 0


@together(
    ("path", "headers", "status"),
    [
        ("/answer", {"Origin": "https://evil.example"}, 403),
        ("/answer", {"Origin": "null"}, 403),
        ("/answer", {"Sec-Fetch-Site": "cross-site"}, 403),
        ("/answer", {"Sec-Fetch-Site": "same-site"}, 403),
        (
            "/answer",
            {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"},
            403,
        ),
        ("/answer", {"Sec-Fetch-Site": "same-origin"}, 200),
        ("/answer", {}, 200),
        ("/", {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}, 403),
        ("/", {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}, 200),
        ("/", {"Sec-Fetch-Site": "none", "Sec-Fetch-Mode": "navigate"}, 200),
    ],
)
def test_other_pages_cannot_ask(
    explorer: Explorer, path: str, headers: dict[str, str], status: int
) -> None:
    """A browser says where a question comes from: only the explorer's own page starts a prediction."""
    with served(explorer) as server:
        own = {"Origin": f"http://127.0.0.1:{server.server_port}"}
        assert get(server, path, **headers)[0] == status
        if status == 200:
            assert get(server, path, **(headers | own))[0] == 200


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("training.micro_batch", "3"),
        ("training.global_batch", "100000"),
        ("parallel.dp", "3"),
        ("nvlink.bandwidth", "1e9x"),
        ("parallel.data_parallel", "/etc/passwd"),
    ],
)
def test_values_are_those_of_the_controls(
    explorer: Explorer, key: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What no slider offers is refused before anything is predicted or kept, and the values that there are are said."""
    explorer.answer({})  # the page has it
    monkeypatch.setattr(Explorer, "predicted", None)
    kept = len(explorer._answers)
    with served(explorer) as server:
        status, text = get(server, f"/answer?{urlencode({key: value})}")
    told = json.loads(text)["mistakes"]
    assert status == 400 and "a value of its control" in told and len(told) < 2000
    assert len(explorer._answers) == kept


def test_sliders_together_bound_the_work(
    explorer: Explorer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each value has its slider, but one GPU with the smallest micro batch and the largest batch would run for minutes."""
    monkeypatch.setattr(answers, "execute", None)
    asked = {
        "parallel.dp": "1",
        "training.micro_batch": "1",
        "training.global_batch": "16384",
    }
    assert "layers in a step" in explorer.answer(asked)["mistakes"]


def test_too_many_questions_are_sent_away(explorer: Explorer) -> None:
    """Those that wait are few: a flood takes no thread and no memory for long."""
    with served(explorer) as server:
        for _ in range(MOST_WAITING):
            assert server.room.acquire(blocking=False)
        assert get(server, "/answer")[0] == 503
        server.room.release()
        assert get(server, "/answer")[0] == 200


def test_every_control_starts_as_the_scenario(explorer: Explorer) -> None:
    """Sliders stand at the scenario's values, which are among those they offer."""
    text = page.render(explorer)
    assert all(
        knob.value in knob.values and f'id="{knob.key}"' in text
        for knob in explorer.knobs
    )
    assert not any(
        knob.key == "parallel.tp" for knob in explorer.knobs
    )  # an mlp is not split so


@pytest.mark.parametrize(
    ("text", "factor", "made"),
    [
        ("1x", 2, "2x"),
        ("0.5x", 0.5, "0.25x"),
        ("400 Gbit/s", 2, "800 Gbit/s"),
        ("off", 2, ""),
    ],
)
def test_factors_keep_the_unit(text: str, factor: float, made: str) -> None:
    """What the scenario says of a link is where its slider starts."""
    assert scaled(text, factor) == made


def test_the_command_serves_until_it_is_stopped(tmp_path: Path) -> None:
    """Its address is the one line on stdout; Ctrl-C ends it without an error; a port in use is refused."""
    import os
    import signal

    command = [sys.executable, "-m", "prestep", "explore", "mlp-ddp4"]
    with subprocess.Popen(
        command,
        cwd=EXAMPLES.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Where this test runs in the background, SIGINT may be ignored, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as child:
        assert child.stdout is not None
        address = child.stdout.readline().strip()
        try:
            assert re.fullmatch(r"http://127\.0\.0\.1:\d+/", address)
            port = address.rsplit(":", 1)[1].rstrip("/")
            made = CliRunner().invoke(cli.main, ["explore", "mlp-ddp4", "--port", port])
            assert made.exit_code == 2 and "--port" in made.output
        finally:
            os.kill(child.pid, signal.SIGINT)
        _, said = child.communicate(timeout=300)
    assert child.returncode == 0 and "Traceback" not in said


def test_jobs_are_refused() -> None:
    """With what does predict them."""
    made = CliRunner().invoke(cli.main, ["explore", str(EXAMPLES / "two-jobs.toml")])
    assert made.exit_code == 2 and "prestep run" in made.output


def test_a_curve_is_made_of_the_answers_steps(explorer: Explorer) -> None:
    """A step time alone is that of the whole answer, asked before it or after; a mistake is told in the same words."""
    fresh = Explorer(explorer.path)
    asked = {"nvlink.bandwidth": "0.25x"}
    alone, whole = fresh.step(asked), fresh.answer(asked)
    assert alone == {name: whole[name] for name in answers.HEADLINE}
    assert fresh.step(asked) == alone
    assert fresh.step({})["step_time"] == explorer.base.step_time
    wrong = {"training.micro_batch": "512"}
    assert fresh.step(wrong) == fresh.answer(wrong)
    with served(explorer) as server:
        status, text = get(server, f"/step?{urlencode(asked)}")
        assert status == 200 and json.loads(text) == alone
        assert get(server, "/step?nvlink.bandwidth=3x")[0] == 400
        assert get(server, "/step", **{"Sec-Fetch-Site": "cross-site"})[0] == 403


def test_the_title_says_what_is_predicted(explorer: Explorer) -> None:
    """It follows the sliders, and names the changes for a pinned step."""
    told = explorer.answer({"parallel.dp": "2"})
    assert told["title"] != explorer.answer({})["title"]
    assert "parallel.dp=2" in told["changes"] and sum(
        told["shares"].values()
    ) == pytest.approx(told["step_time"], rel=1e-6)


MOVE = """<script>onerror = (m) => { document.title = "ERROR " + m; };
addEventListener("load", () => {
  const move = (id, at) => { const c = document.getElementById(id); c.value = at;
    c.dispatchEvent(new Event("input", { bubbles: true })); };
  move("nvlink.bandwidth", 0); move("gpus", 1);
  const wait = setInterval(() => { const a = document.getElementById("answer");
    if (a.getAttribute("aria-busy") === "false") { clearInterval(wait); document.title = "ANSWERED"; } }, 20);
});</script></head>"""


@pytest.mark.slow
def test_a_slider_moves_the_step_in_a_browser(browser_page: Page) -> None:
    """Moving sliders changes the step time, the command and the timeline, and dp follows the GPUs."""
    explorer = Explorer(
        EXAMPLES / "1b-ddp.toml", ("model.layers=2", "training.global_batch=8")
    )
    with served(explorer) as server:
        server.text = server.text.replace(b"</head>", MOVE.encode(), 1)
        address = server.address
        made = browser_page.dom(address, ENDED)
    assert "<title>ANSWERED" in made
    told = explorer.answer({"nvlink.bandwidth": "0.125x", "parallel.dp": "2"})
    assert told["mistakes"] == "" and told["step_time"] != explorer.base.step_time
    shown = re.search(r'<b id="steptime">(.*?)</b>', made)
    assert shown is not None and shown[1] in told["verdict"]
    assert "--set nvlink.bandwidth=0.125x" in made and "--set parallel.dp=2" in made


#: The scripts below write what they found into the title.
ENDED = "!document.title.startsWith('Explore')"
DRIVE = """<script>onerror = (m) => { document.title = "ERROR " + m; };
addEventListener("load", async () => {
  const byId = (id) => document.getElementById(id), said = {};
  const until = async (test) => { for (let i = 0; i < 600 && !test(); i++) await new Promise((go) => setTimeout(go, 20)); };
  const idle = () => byId("answer").getAttribute("aria-busy") === "false";
  const move = async (id, at) => { const c = byId(id); c.value = at; c.dispatchEvent(new Event("input", { bubbles: true })); await until(idle); };
  await until(idle);
  said.start = byId("nvlink.bandwidth").value; said.title = byId("title").textContent; said.step = byId("steptime").textContent;
  byId("pin").click();
  await move("gpu.flops", 0);
  said.hash = location.hash; said.pinned = byId("pinned").textContent;
  const curve = byId("gpu.flops").closest(".knob").querySelector(".curve");
  await until(() => curve.querySelectorAll("circle").length === 10);
  said.curve = curve.textContent; said.dots = curve.querySelectorAll("circle").length;
  byId("pin").click(); said.unpinned = byId("pinned").hidden;
  document.title = JSON.stringify(said);
});</script></head>"""


@pytest.mark.slow
def test_links_pins_and_curves_in_a_browser(browser_page: Page) -> None:
    """A link opens with its sliders, the pinned step stands beside the next, and the curve has every position."""
    explorer = Explorer(
        EXAMPLES / "1b-ddp.toml", ("model.layers=2", "training.global_batch=8")
    )
    with served(explorer) as server:
        server.text = server.text.replace(b"</head>", DRIVE.encode(), 1)
        address = (
            f"{server.address}#set=parallel.dp=2&nvlink.bandwidth=2x&cluster.file=x"
        )
        made = browser_page.dom(address, ENDED)
    found = re.search(r"<title>(.*?)</title>", made, re.DOTALL)
    assert found is not None
    said = json.loads(unescape(found[1]))
    linked = explorer.answer({"parallel.dp": "2", "nvlink.bandwidth": "2x"})
    assert said["start"] == "7" and said["title"] == linked["title"]
    assert said["step"] in linked["verdict"]
    assert said["hash"] == "#set=nvlink.bandwidth=2x&gpu.flops=0.125x&parallel.dp=2"
    before, _, now = said["pinned"].partition("Now:")
    assert "nvlink.bandwidth=2x" in before and "gpu.flops" not in before
    assert "gpu.flops=0.125x" in now and "difference" in now
    assert said["dots"] == 10 and " at 0.125x" in said["curve"] and said["unpinned"]


PHONE = """<script>onerror = (m) => { document.title = "ERROR " + m; };
addEventListener("load", async () => {
  document.documentElement.dataset.theme = "THEME"; document.body.style.width = "390px";
  const byId = (id) => document.getElementById(id);
  const until = async (test) => { for (let i = 0; i < 600 && !test(); i++) await new Promise((go) => setTimeout(go, 20)); };
  await until(() => byId("answer").getAttribute("aria-busy") === "false");
  const box = byId("verdict").getBoundingClientRect(), style = getComputedStyle(byId("verdict"));
  document.title = JSON.stringify({ wide: document.body.scrollWidth, seen: box.top > 0 && box.bottom <= innerHeight,
    ink: style.color, card: style.backgroundColor });
});</script></head>"""


@pytest.mark.slow
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_phone_shows_the_answer_beside_the_sliders(
    browser_page: Page, theme: str
) -> None:
    """The step stays in the window though the sliders fill it, and a body of 390 pixels does not overflow."""
    explorer = Explorer(EXAMPLES / "1b-ddp.toml", ("model.layers=2",))
    with served(explorer) as server:
        hand = PHONE.replace("THEME", theme).encode()
        server.text = server.text.replace(b"</head>", hand, 1)
        address = server.address
        made = browser_page.dom(address, ENDED, 500, 700)
    found = re.search(r"<title>(.*?)</title>", made, re.DOTALL)
    assert found is not None
    said = json.loads(unescape(found[1]))
    assert said["wide"] <= 390 and said["seen"]
    light = [
        sum(map(int, re.findall(r"\d+", said[key])[:3])) for key in ("ink", "card")
    ]
    assert abs(light[0] - light[1]) > 400  # letters stand out from their card
