"""One drawn sign per verdict and per look of a step, so that colour never has to be seen to tell them apart."""

GLYPHS = {
    "pass": "M3 8.5l3.5 3.5L13 4.5",
    "fail": "M4 4l8 8M12 4l-8 8",
    "inconclusive": "M5.5 6a2.5 2.5 0 1 1 3.6 2.3c-.8.4-1.1.9-1.1 1.7M8 13v.1",
    "accepted": "M3 8.5l3.5 3.5L13 4.5",
    "refused": "M8 2l5 2v4c0 3-2 5-5 6-3-1-5-3-5-6V4zM6 6l4 4M10 6l-4 4",
    "stale": "M8 1.5l2 4 4.5.5-3.3 3 1 4.5L8 11.3 3.8 13.5l1-4.5-3.3-3L6 5.5z",
    "nothing": "M8 3a5 5 0 1 0 .01 0zM4 12L12 4",
    "held": "M5.5 3.5v9M10.5 3.5v9",
    "blocked": "M4 7.5h8v6H4zM5.5 7V5a2.5 2.5 0 0 1 5 0v2",
    "cut": "M2 8h4M10 8h4M7 4l-1 8M10 4l-1 8",
    "clock": "M8 2.5a5.5 5.5 0 1 0 .01 0zM8 5v3.2l2.2 1.3",
    "fault": "M9 1.5L4 9h4l-1 5.5L12 7H8z",
    "exit": "M6 3H3v10h3M7 8h6.5M11 5.5L13.5 8 11 10.5",
    "end": "M4 14V2.5M4 3h8l-2 2.5L12 8H4",
    "unknown": "M5.5 6a2.5 2.5 0 1 1 3.6 2.3c-.8.4-1.1.9-1.1 1.7M8 13v.1",
    "error": "M8 2l6.5 11.5h-13zM8 6.5v3.2M8 11.8v.1",
    "ignored": "M2.5 8c1.5-3 3.5-3 5.5 0s4 3 5.5 0",
}
