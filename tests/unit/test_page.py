"""The page's colours are told apart by those who see little; what it needs is in the package."""

from __future__ import annotations

import re
from importlib import resources

import pytest

CSS = resources.files("cdcwatch").joinpath("page", "page.css").read_text()
GROUNDS = ("ground", "card", "good-ground", "bad-ground")


def colours(block: str) -> dict[str, str]:
    return dict(re.findall(r"--([\w-]+): #([0-9a-f]{6});", block))


def luminance(colour: str) -> float:
    """https://www.w3.org/TR/WCAG21/#dfn-relative-luminance"""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_contrast_is_at_least_that_of_aa(scheme: str) -> None:
    light, dark = map(colours, re.findall(r":root \{(.*?)\}", CSS, re.DOTALL)[:2])
    assert set(light) == set(dark)
    of = light if scheme == "light" else dark
    used = {
        "text": GROUNDS,
        "quiet": ("ground", "card"),
        "accent": ("ground", "card"),
        "good": ("card", "good-ground"),
        "bad": ("card", "bad-ground"),
        "warn": ("card",),
    }
    found = {(name, ground): contrast(of[name], of[ground]) for name, grounds in used.items() for ground in grounds}
    assert {pair: ratio for pair, ratio in found.items() if ratio < 4.5} == {}
    assert contrast("000000", "ffffff") == pytest.approx(21)


def test_motion_and_forced_colours_are_thought_of() -> None:
    assert "prefers-reduced-motion: reduce" in CSS
    assert "forced-colors: active" in CSS
