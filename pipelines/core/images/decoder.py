"""Encoded images to pixels of one shape, by DALI: decode, apply the EXIF orientation, resize, fit.

Guarantees:
- An image that already has the wanted size comes out with the pixels that it holds.
- The bytes depend on the image and the settings, and on nothing else in its batch, nor on
  threads. CPU and GPU decoders differ in bits, so the device is a setting and never falls back.
- An image that DALI cannot decode costs nobody else anything. DALI's error ends the whole
  pipeline object and names the culprit only sometimes, so the batch is halved until it is found.

What becomes of pixels: 16 bits are scaled to 8 (divided by 257 and rounded), gray becomes three
equal channels or colour becomes gray (BT.601) as `channels` asks, CMYK becomes RGB, palettes are
looked up, alpha is dropped (as Pillow's `convert("RGB")` does: what lies beneath transparent
pixels shows). Resizing is linear with antialias, in the manner of Pillow's BILINEAR.

Costs, one core, JPEGs of 500 x 375 to 224 x 224: about 1.2 ms an image; 28 x 28 PNGs: 25 us.
Building a pipeline costs 3 ms. Memory: the decoded images of one batch, so bound the pixels of a
batch.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from nvidia.dali import fn, math, types
from nvidia.dali.pipeline import Pipeline, pipeline_def
from PIL import Image

from pipelines.core.errors import HeadraceError

Fit = Literal["crop", "pad", "stretch"]
Device = Literal["cpu", "gpu"]

_NUM_THREADS = 1
MAX_BATCH = 4 * (_NUM_THREADS + 1)
"""Images of one call. A larger batch, DALI (2.4.0) shares out between its threads to look at the
headers; when a header is bad it leaves that work running on memory that it has given up, and the
process dies. Batches of 64 are no faster.
"""

_DECODER = "fn.decoders.image"
_SIGNS_OF_MACHINE_FAULT = ("out of memory", "cuda", "bad_alloc")


@dataclass(frozen=True)
class Settings:
    """What an image is turned into, and where."""

    height: int
    width: int
    channels: int
    """1 (gray) or 3 (RGB)."""
    fit: Fit
    """crop: fill the frame and cut off evenly what stands over. pad: the whole image, centred on
    black. stretch: the whole image, its aspect not kept."""
    device: Device

    @property
    def shape(self) -> tuple[int, int, int]:
        """[H, W, C] of every image."""
        return self.height, self.width, self.channels


class _Undecodable(Exception):  # noqa: N818 - A finding about a batch, not an error.
    """Some image of the batch cannot be decoded."""


class Decoder:
    """One DALI pipeline, built when first needed and again after a batch that had a bad image.

    Not for several threads at once: see `borrowed`.
    """

    def __init__(self, settings: Settings, device_id: int = 0) -> None:
        """Make a decoder; `device_id` is the number of the GPU, where one is asked for.

        Raises:
            HeadraceError: a GPU is asked for and there is none.
        """
        if settings.device == "gpu" and device_id >= num_gpus():
            raise HeadraceError(
                "decode is to run on a GPU, and there is none that can be used.",
                where="params.yaml:decode.device",
                expected="an NVIDIA GPU with its driver, or device: cpu",
                found=f"{num_gpus()} GPUs",
                fix="`dvc exp run -S decode.device=cpu`; its bits differ, so it is another version",
            )
        self._settings = settings
        self._device_id = device_id if settings.device == "gpu" else None
        self._pipeline: Pipeline | None = None

    def decode(self, encoded: Sequence[bytes], out: npt.NDArray[np.uint8]) -> npt.NDArray[np.bool_]:
        """Decode a batch.

        Args:
            encoded: whole image files, at most MAX_BATCH.
            out: [n, H, W, C] uint8, written where decoding succeeds and left alone elsewhere.

        Returns:
            [n] bool: which of the images were decoded.

        Raises:
            HeadraceError: DALI fails for another reason than the images.
        """
        assert len(encoded) <= MAX_BATCH
        if not encoded:
            return np.zeros(0, bool)
        try:
            out[:] = self._run(encoded)
        except _Undecodable:
            if len(encoded) == 1:
                self._check_health()
                return np.zeros(1, bool)
            half = len(encoded) // 2
            return np.concatenate(
                [self.decode(encoded[:half], out[:half]), self.decode(encoded[half:], out[half:])]
            )
        return np.ones(len(encoded), bool)

    def _run(self, encoded: Sequence[bytes]) -> npt.NDArray[np.uint8]:
        """[n, H, W, C] uint8; valid until the next call."""
        try:
            if self._pipeline is None:
                self._pipeline = _build(self._settings, self._device_id)
            self._pipeline.feed_input(
                "encoded", [np.frombuffer(data, np.uint8) for data in encoded]
            )
            (images,) = self._pipeline.run()
            return np.asarray(images.as_cpu().as_tensor())
        except RuntimeError as error:
            self._pipeline = None
            gist = _gist(str(error))
            is_machine = any(sign in gist.lower() for sign in _SIGNS_OF_MACHINE_FAULT)
            if _DECODER in str(error) and not is_machine:
                raise _Undecodable from None
            raise HeadraceError(
                "DALI failed, and not because of an image.",
                where=f"decode.device: {self._settings.device}",
                found=gist,
                fix="free memory on the device or use fewer workers (cluster.yaml: num_workers)",
            ) from error

    def _check_health(self) -> None:
        """Decode an image that is known to be good, before a single image takes the blame."""
        try:
            self._run([_known_good()])
        except _Undecodable:
            raise HeadraceError(
                "DALI cannot decode even a known good image on this machine.",
                where=f"decode.device: {self._settings.device}",
                fix="check the installation: `make setup`, and for a GPU `nvidia-smi`",
            ) from None


_idle: defaultdict[tuple[Settings, int], list[Decoder]] = defaultdict(list)


@contextlib.contextmanager
def borrowed(settings: Settings, shard_number: int) -> Iterator[Decoder]:
    """A decoder that no other thread uses meanwhile; kept for the next borrower of this process.

    Args:
        settings: what to decode to.
        shard_number: deals shards to the GPUs of the machine, where they decode.
    """
    device_id = shard_number % max(1, num_gpus()) if settings.device == "gpu" else 0
    idle = _idle[settings, device_id]
    try:
        decoder = idle.pop()  # atomic, unlike looking first
    except IndexError:
        decoder = Decoder(settings, device_id)
    yield decoder
    idle.append(decoder)


def num_gpus() -> int:
    """Number of GPUs that the CUDA driver offers to this process; 0 without a driver."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int(0)
    if cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count)):
        return 0
    return count.value


def _build(settings: Settings, device_id: int | None) -> Pipeline:
    # One thread: the stage is parallel over shards. No prefetch: batches are handed in one by one.
    pipeline = _definition(
        settings,
        batch_size=MAX_BATCH,
        num_threads=_NUM_THREADS,
        device_id=device_id,
        prefetch_queue_depth=1,
    )
    pipeline.build()
    return pipeline


@pipeline_def  # type: ignore[untyped-decorator]
def _definition(settings: Settings) -> Any:
    """The graph: bytes -> [H, W, C] uint8."""
    encoded = fn.external_source(name="encoded", batch=True, dtype=types.UINT8, ndim=1)
    images = fn.decoders.image(
        encoded,
        device="mixed" if settings.device == "gpu" else "cpu",
        output_type=types.GRAY if settings.channels == 1 else types.RGB,
        adjust_orientation=True,
    )
    size = [settings.height, settings.width]
    linear = {"interp_type": types.INTERP_LINEAR, "antialias": True}
    match settings.fit:
        case "stretch":
            return fn.resize(images, size=size, **linear)
        case "crop":
            # The part to keep is cut out by the resampling itself: an image of 1 x 10,000 pixels is
            # never enlarged to fill the frame first.
            start, end = _kept_part(images, size)
            return fn.resize(images, size=size, roi_start=start, roi_end=end, **linear)
        case "pad":
            whole = fn.resize(images, size=size, mode="not_larger", **linear)
            return fn.crop(whole, crop=size, out_of_bounds_policy="pad", fill_values=0)


def _kept_part(images: Any, size: Sequence[int]) -> tuple[Any, Any]:
    """Corners (y, x), in pixels of the image, of its largest centred part of that aspect."""
    shape = images.shape(dtype=types.FLOAT)
    height, width = shape[0], shape[1]
    scale = math.min(height / size[0], width / size[1])
    top, left = (height - scale * size[0]) / 2, (width - scale * size[1]) / 2
    return fn.stack(top, left), fn.stack(height - top, width - left)


def _known_good() -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (8, 8)).save(buffer, "JPEG")
    return buffer.getvalue()


def _gist(message: str) -> str:
    """The sentence of a DALI error that says what happened, without the traceback around it."""
    return " ".join(message.rpartition("encountered:")[2].split())[:300]
