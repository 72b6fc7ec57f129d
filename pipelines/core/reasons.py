"""Why a sample was dropped: every reason that a stage may write into a rejected table.

A reason is a word that stays the same over versions, since reports, tests and reviews count by
it; what is particular to one sample (a size, a line number, a decoder's message) goes into the
row's `detail`. They stand in the order in which they are looked for: a sample has one reason, the
first that fits.
"""

from enum import StrEnum
from typing import Self


class Reason(StrEnum):
    """A reason and, in `meaning`, the sentence that explains it to a person."""

    meaning: str

    def __new__(cls, value: str, meaning: str = "") -> Self:
        """Make a member that equals the string `value` and carries its explanation."""
        member = str.__new__(cls, value)
        member._value_ = value
        member.meaning = meaning
        return member

    # Found while listing, before a byte of an image is read.
    MALFORMED_ROW = "malformed_row", "The line of the metadata file cannot be read as a row."
    UNSAFE_PATH = "unsafe_path", "The path is absolute or leaves its folder."
    MISSING_FILE = "missing_file", "The metadata names a file that is not there."
    AMBIGUOUS_FILE = "ambiguous_file", "The path fits files in several archives."
    NOT_LISTED = "not_listed", "A file that no row of the metadata names."
    NO_LABEL = "no_label", "The row has no label, or the file lies in no class folder."
    UNKNOWN_LABEL = "unknown_label", "The label is not in the card's list."
    UNKNOWN_SPLIT = "unknown_split", "The split is none of train, val and test."
    CONFLICTING_LABELS = "conflicting_labels", "The same file or content has several labels."
    DUPLICATE_ROW = "duplicate_row", "An earlier row names the same file with the same label."

    # Found while looking at the bytes.
    TOO_MANY_BYTES = "too_many_bytes", "The file is larger than `max_file_mib`."
    UNREADABLE = "unreadable", "The file is empty, or its content cannot be decoded."
    UNSUPPORTED_FORMAT = "unsupported_format", "The content is in no supported image format."
    TOO_MANY_PIXELS = "too_many_pixels", "The image has more pixels than `max_megapixels`."
    TRUNCATED = "truncated", "The content ends early."

    # Found by comparing features with the params, and samples with each other.
    TOO_SMALL = "too_small", "A side is shorter than `min_side_px`."
    ODD_ASPECT = "odd_aspect", "The longer side exceeds the shorter `max_aspect_ratio` times."
    BLANK = "blank", "The contrast is below `min_contrast`."
    OUTLIER = (
        "outlier",
        (
            "It is odder beside the other images than `max_blur_z`, `max_darkness_z`, "
            "`max_low_information_z`, `max_size_z` or `max_aspect_z` allows."
        ),
    )
    EXACT_DUPLICATE = "exact_duplicate", "Another kept sample has the same bytes and label."
    NEAR_DUPLICATE = (
        "near_duplicate",
        "A kept sample of its label looks alike: hashes within `near_duplicate_radius_bits`.",
    )

    # Found by later stages.
    DECODE_FAILED = "decode_failed", "The decoder of the training data refused the image."
