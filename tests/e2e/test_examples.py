"""The examples as processes, as their readers run them, on data that they make."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
# `sidecar_trainer` needs a sidecar: its own tests run it.
NAMES = sorted(path.stem for path in EXAMPLES.glob("*.py") if path.stem != "sidecar_trainer")
Run = Callable[..., str]


@pytest.fixture
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Runs an example in a folder of its own, and returns its standard output."""
    folder = tmp_path_factory.mktemp("x")

    def run_example(name: str, *arguments: str, torchrun: int = 0) -> str:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("STREAMER_")}
        # One thread each: the cores are shared with the rest of the tests.
        own = {"STREAMER_RUNTIME_DIR": str(folder / "run"), "OMP_NUM_THREADS": "1", "TMPDIR": str(folder)}
        launcher = (
            ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(torchrun)] if torchrun else []
        )
        command = [sys.executable, *launcher, str(EXAMPLES / f"{name}.py"), *arguments]
        done = subprocess.run(
            command, capture_output=True, text=True, env=environment | own, cwd=folder, check=False, timeout=240
        )
        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stderr, done.stderr
        return done.stdout

    return run_example


@pytest.mark.parametrize("name", NAMES)
def test_the_docstring_shows_how_to_run_it(name: str) -> None:
    """The docstring of each example shows the command that runs it, and serves as its --help."""
    text = (EXAMPLES / f"{name}.py").read_text()
    assert f"python examples/{name}.py" in text.partition('"""')[2].partition('"""')[0]
    assert "description=__doc__" in text


@pytest.mark.slow
def test_plain_dataloader_sees_every_sample(run: Run) -> None:
    """The example plain_dataloader gets all samples of each class in both epochs."""
    lines = run("plain_dataloader", "--images", "64", "--workers", "1").splitlines()
    assert [line.partition(":")[0] for line in lines] == ["epoch 0", "epoch 1"]
    assert all("64 samples" in line and line.endswith("[16, 16, 16, 16]") for line in lines)


@pytest.mark.slow
def test_scientific_arrays_finds_the_moments_of_the_data(run: Run) -> None:
    """The example scientific_arrays finds the moments of 6 blocks in batches of 4, because it leaves repeats out."""
    lines = run("scientific_arrays", "--blocks", "6", "--workers", "0").splitlines()
    means, deviations = ([float(text) for text in line.split()[1:]] for line in lines[:2])
    assert means == pytest.approx([0, 1, -2, 5], abs=0.01)
    assert deviations == pytest.approx([1, 0.5, 2, 3], abs=0.01)


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_coco_detection_finds_the_squares(run: Run) -> None:
    """The example coco_detection gets every box in each epoch, and its last epoch is right in over 95 % of the cells.

    A third of the cells is inside of a box.
    """
    lines = run("coco_detection").splitlines()
    assert [line.partition(" of red, blue")[0] for line in lines] == [f"epoch {epoch}: 374 boxes" for epoch in range(4)]
    assert float(lines[-1].rpartition("%")[0].rpartition(" ")[2]) > 95


@pytest.mark.slow
def test_slow_link_uses_blocks_equally(run: Run) -> None:
    """The example slow_link has equal steps in every epoch, and uses of its blocks differ by at most reuse + 1."""
    arguments = ("--epochs", "4", "--reuse", "3", "--step-seconds", "0.002")
    lines = [line for line in run("slow_link", *arguments).splitlines() if line.startswith("epoch")]
    assert [line.partition(", ")[0] for line in lines] == [f"epoch {epoch}: 50 steps" for epoch in range(4)]
    least, most = re.findall(r"each (\d+) to (\d+) times", lines[-1])[0]
    assert int(most) <= int(least) + 4


@pytest.mark.slow
def test_stall_callbacks_name_the_slow_transform(run: Run) -> None:
    """The example stall_callbacks reports a slow transform every half second, at ascending steps of the trainer.

    `make test-pages` runs it with TensorBoard and W&B.
    """
    steps = [int(line.split()[1].rstrip(":")) for line in run("stall_callbacks").splitlines() if "transform" in line]
    assert len(steps) >= 2
    assert steps == sorted(steps)


@pytest.mark.slow
def test_pack_folder_leaves_small_ones_out(run: Run) -> None:
    """The example pack_folder packs the 82 of 300 arrays that are large enough.

    An array of n numbers has 128 + 4 n bytes: those from n = 218 on stay.
    """
    lines = run("pack_folder").splitlines()
    assert lines[0].startswith("82 samples in 7 shards, manifest ")
    assert lines[1].startswith("82 samples; the first: class")


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("layout", ["megatron", "plain"])
def test_llm_tokens_learns_the_language(run: Run, layout: str) -> None:
    """The example llm_tokens reads every window in both epochs, and its loss nears the language's entropy of 1.1."""
    lines = run("llm_tokens", "--layout", layout).splitlines()
    assert "65,536 tokens" in lines[0]
    assert "65,536 tokens" in lines[1]
    assert float(lines[1].rpartition(" ")[2]) < 1.4


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_packed_sft_has_the_loss_of_the_chats_alone(run: Run) -> None:
    """The example packed_sft reads all chats in full rows, and packed chats have the loss that they have one by one."""
    lines = run("packed_sft").splitlines()
    assert [line.partition(":")[0] for line in lines] == ["epoch 0", "epoch 1"]
    for line in lines:
        found = re.search(r"400 chats, ([\d.]+)% padding, .* -> ([\d.]+), packed and one by one (\S+) apart", line)
        assert found is not None
        assert float(found[1]) < 2
        assert float(found[3]) < 1e-4
    assert float(found[2]) < 1.2


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_packed_vlm_costs_all_ranks_the_same(run: Run) -> None:
    """The example packed_vlm takes as many balanced steps as unbalanced ones, and balance evens out what ranks cost.

    The dearest rank costs at most a twentieth more than the mean.
    """
    lines = run("packed_vlm").splitlines()
    found = [re.fullmatch(r"(.*): (\d+) steps, the dearest rank costs ([\d.]+) times the mean", line) for line in lines]
    assert [None if match is None else match[1] for match in found] == ["as they come", "balanced"]
    assert found[0][2] == found[1][2]
    assert float(found[0][3]) > 1.2
    assert float(found[1][3]) < 1.05


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_bucketed_sounds_stay_within_the_budget(run: Run) -> None:
    """The example bucketed_sounds reads all sounds in equally many batches per epoch, pads under 10 %, and learns."""
    lines = run("bucketed_sounds").splitlines()
    found = [
        re.fullmatch(r"epoch \d: 400 sounds in (\d+) batches .*, ([\d.]+)% padding, loss [\d.]+ -> ([\d.]+)", line)
        for line in lines
    ]
    assert len(found) == 2
    assert found[0] is not None
    assert found[1] is not None
    assert found[0][1] == found[1][1]
    assert float(found[1][2]) < 10
    assert float(found[1][3]) < 1


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_windows_of_talks_tell_the_speaker(run: Run) -> None:
    """The example speech_windows reads each window once per epoch, and its model learns who talks."""
    lines = run("speech_windows").splitlines()
    found = [re.fullmatch(r"epoch \d: 476 windows, (\d+)% right, loss [\d.]+", line) for line in lines]
    assert len(found) == 3
    assert all(found)
    assert int(found[-1][1]) > 95


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_lerobot_policy_learns_to_move_to_the_goal(run: Run) -> None:
    """The example lerobot_policy reads each frame of 60 episodes in every epoch, and its error falls.

    The last three frames of an episode lack 1 + 2 + 3 actions.
    """
    lines = run("lerobot_policy", "--epochs", "5").splitlines()
    found = [re.fullmatch(r"epoch \d: 720 frames, 360 actions padded, ([\d.]+) off", line) for line in lines]
    assert len(found) == 5
    assert all(found)
    assert float(found[-1][1]) < 0.6 * float(found[0][1])


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_imagenet_goes_on_with_more_processes_where_it_stopped(run: Run, tmp_path: Path) -> None:
    """The example imagenet_torchrun, stopped after 5 steps of 32 on one process, goes on at sample 160 on two.

    Its model learns the classes.
    """
    rest = ("--data", f"{tmp_path}/images", "--checkpoint", f"{tmp_path}/run.pt")
    assert run("imagenet_torchrun", *rest, "--stop-after", "5") == "stopped after 5 steps\n"
    lines = run("imagenet_torchrun", *rest, torchrun=2).splitlines()
    assert lines[0] == "resumed in epoch 0 at sample 160"
    found = re.fullmatch(r"epoch 1: loss [\d.]+, validation ([\d.]+)%, waited [\d.]+% for data", lines[2])
    assert found is not None
    assert float(found[1]) > 90


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_imagenet_does_not_wait_where_the_step_is_slower_than_the_decode(run: Run) -> None:
    """The example imagenet_torchrun waits less than 2 % for data where a step takes longer than decoding its images.

    A step of 32 images of 128 x 128 on one core takes longer than their decoding in one worker.
    """
    lines = run("imagenet_torchrun", "--edge", "128").splitlines()
    found = re.fullmatch(r"epoch 1: .*, waited ([\d.]+)% for data", lines[1])
    assert found is not None
    assert float(found[1]) < 2


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_lightning_trains_and_validates(run: Run) -> None:
    """The example lightning_module trains three epochs over four fifths of 256 samples in batches of 16."""
    pytest.importorskip("lightning")
    found = re.fullmatch(r"(\d+) steps: \{'accuracy': ([\d.]+), 'loss': [\d.]+\}\n", run("lightning_module"))
    assert found is not None
    assert 36 <= int(found[1]) <= 42
    assert float(found[2]) > 0.5


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_video_clips_are_drawn_anew_and_exact(run: Run) -> None:
    """The example video_clips draws other clips of each video in each epoch, and every frame is the one of its time."""
    lines = run("video_clips").splitlines()
    assert all("24 clips of (8, 3, 48, 64)" in line and line.endswith("at their times: True") for line in lines)
    assert len({line.partition(":")[2] for line in lines}) == len(lines) == 2


@pytest.mark.slow
def test_three_sets_come_in_their_shares(run: Run) -> None:
    """The example three_sets draws 28, 8 and 4 samples of its sets into each batch of 40, in all three epochs."""
    lines = run("three_sets").splitlines()
    shares = "photos 280 (28 to 28 a batch), drawings 80 (8 to 8 a batch), scans 40 (4 to 4 a batch)"
    assert lines[-6:-3] == [f"epoch {epoch}: {shares}" for epoch in range(3)]
    assert lines[-3:] == [
        "photos: 840 samples drawn, 1.40 passes",
        "drawings: 240 samples drawn, 2.40 passes",
        "scans: 120 samples drawn, 6.00 passes",
    ]


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_curriculum_goes_on_in_its_stage(run: Run, tmp_path: Path) -> None:
    """The example curriculum draws each stage's shares, and six epochs in two runs have the losses of one run."""
    stages = [(512, 0), (512, 0), (256, 256), (256, 256), (128, 384), (128, 384)]
    whole = run("curriculum").splitlines()
    assert [line.rpartition(",")[0] for line in whole] == [
        f"epoch {epoch}: {easy} easy, {hard} hard" for epoch, (easy, hard) in enumerate(stages)
    ]
    checkpoint = ("--checkpoint", str(tmp_path / "run.pt"))
    assert run("curriculum", *checkpoint, "--stop-after", "3").splitlines() == whole[:3]
    assert run("curriculum", *checkpoint).splitlines() == whole[3:]
