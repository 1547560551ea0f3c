import pytest
import torch
from support.native import has_compiler

from benchkit import streams
from benchkit.streams import STREAM_BYTES, make_streams, stream_numel

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("numel", "expected"), [(1, 64), (103, 64), (128, 128), (25_557_032, 25_557_024 // 64 * 64)]
)
def test_streams_are_as_long_as_the_list(numel, expected):
    assert stream_numel(numel) == expected


def test_streams_of_a_long_list_are_shorter():
    assert stream_numel(124_439_808) == 32_000_000


@pytest.mark.skipif(not has_compiler(), reason="no C++ compiler")
@pytest.mark.parametrize("num_threads", [1, 3])
def test_every_stream_writes_all_its_elements(num_threads, monkeypatch):
    made = []

    def remember(make):
        def remembering(*args, **kwargs):
            made.append(make(*args, **kwargs))
            return made[-1]

        return remembering

    monkeypatch.setattr(torch, "zeros", remember(torch.zeros))
    monkeypatch.setattr(torch, "ones", remember(torch.ones))
    run = make_streams(64 * 7 + 13, device=CPU, num_threads=num_threads)
    gradients, copies, remainders, short_means, short_squares, weights, means, squares = made
    assert list(run) == list(STREAM_BYTES)

    run["read"]()
    assert gradients.eq(1).all()
    assert means.eq(0).all()

    run["copied"]()
    assert weights.eq(0.5).all()
    assert copies.eq(0.5).all()
    assert means.eq(1).all()
    assert squares.eq(1).all()

    run["adopted"]()
    # A quarter of weight, copy and gradient together.
    assert weights.eq(0.5).all()
    assert copies.eq(0.5).all()
    assert means.eq(2).all()

    copies.fill_(0.25)
    run["split"]()
    assert copies.eq(0.625).all()
    assert remainders.eq(0).all()
    assert squares.eq(3).all()
    assert short_means.eq(0).all()

    copies.fill_(0.25)
    run["rounded"]()
    assert copies.eq(0.625).all()
    assert short_means.eq(1).all()
    assert short_squares.eq(1).all()
    assert squares.eq(3).all()


def test_a_missing_compiler_is_said(monkeypatch):
    monkeypatch.setattr(streams, "get_cxx_compiler", lambda: "absent-compiler")
    streams._library.cache_clear()
    with pytest.raises(RuntimeError, match=r"absent-compiler does not compile streams\.cpp"):
        make_streams(64, device=CPU, num_threads=1)
