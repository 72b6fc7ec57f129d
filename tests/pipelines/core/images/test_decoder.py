"""Pixels of one shape: exact where nothing need change, as Pillow's where something must."""

import dataclasses
import io
import threading

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image, ImageOps

from pipelines.core.errors import HeadraceError
from pipelines.core.images import decoder
from pipelines.core.images.decoder import MAX_BATCH, Decoder, Fit, Settings, borrowed
from tests import pictures

Pixels = npt.NDArray[np.uint8]
FITS: tuple[Fit, ...] = ("crop", "pad", "stretch")


def settings(height: int, width: int, channels: int = 3, fit: Fit = "crop") -> Settings:
    return Settings(height, width, channels, fit, "cpu")


def decode(files: list[bytes], wanted: Settings) -> tuple[Pixels, npt.NDArray[np.bool_]]:
    out = np.zeros((len(files), *wanted.shape), np.uint8)
    return out, Decoder(wanted).decode(files, out)


def bad_files() -> dict[str, bytes]:
    jpeg, png = (pictures.encode(pictures.picture(), name) for name in ("JPEG", "PNG"))
    flipped = bytearray(png)
    flipped[len(png) // 2] ^= 0x40
    return {
        "empty": b"",
        "text": b"this is no image",
        "garbage": np.random.default_rng(0).bytes(500),
        "half a JPEG": jpeg[: len(jpeg) // 2],
        "a JPEG that lacks its end": jpeg[:-2],
        "half a PNG": png[: len(png) // 2],
        "a PNG with a flipped bit": bytes(flipped),
        "half a WebP": pictures.encode(pictures.picture(), "WEBP")[:200],
        "half a BMP": pictures.encode(pictures.picture(), "BMP")[:300],
        "half a TIFF": pictures.encode(pictures.picture(), "TIFF")[:300],
        "a GIF": pictures.encode(pictures.picture().quantize(8), "GIF"),
    }


@pytest.mark.parametrize("fit", FITS)
@pytest.mark.parametrize("shape", [(28, 28, 1), (33, 57, 3), (224, 224, 3), (7, 500, 3)])
def test_an_image_of_the_wanted_size_keeps_its_pixels(
    fit: Fit, shape: tuple[int, int, int]
) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (5, *shape), dtype=np.uint8)
    files = [pictures.encode(Image.fromarray(pixels.squeeze()), "PNG") for pixels in noise]
    out, is_good = decode(files, settings(*shape, fit=fit))
    assert is_good.all()
    np.testing.assert_array_equal(out, noise)


@pytest.mark.parametrize("size", [(300, 400), (400, 300), (90, 500), (50, 60), (500, 333)])
@pytest.mark.parametrize("fit", FITS)
def test_other_sizes_come_out_as_with_pillow(fit: Fit, size: tuple[int, int]) -> None:
    image = pictures.picture(*size)
    out, _ = decode([pictures.encode(image, "PNG")], settings(96, 80, fit=fit))
    wanted = np.asarray(by_pillow(image, fit, (80, 96))).astype(int)
    # Where the padding is odd, Pillow may put the spare line on the other side.
    shifts = [(0, 0), (1, 0), (-1, 0), (0, 1), (0, -1)] if fit == "pad" else [(0, 0)]
    assert min(np.abs(np.roll(out[0], by, (0, 1)) - wanted).mean() for by in shifts) < 0.5


def by_pillow(image: Image.Image, fit: Fit, frame: tuple[int, int]) -> Image.Image:
    match fit:
        case "crop":
            return ImageOps.fit(image, frame, Image.Resampling.BILINEAR)
        case "pad":
            return ImageOps.pad(image, frame, Image.Resampling.BILINEAR)
        case "stretch":
            return image.resize(frame, Image.Resampling.BILINEAR)


def test_padding_is_black_and_even() -> None:
    white = pictures.encode(Image.new("RGB", (20, 10), "white"), "PNG")
    out, _ = decode([white], settings(20, 20, fit="pad"))
    assert (out[0, 5:15] == 255).all()
    assert (out[0, :5] == 0).all()
    assert (out[0, 15:] == 0).all()


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("name", ["JPEG", "PNG", "TIFF", "WEBP"])
def test_images_come_out_upright(name: str, orientation: int) -> None:
    options = {"JPEG": {"quality": 100, "subsampling": 0}, "WEBP": {"quality": 95}}.get(name, {})
    exif = pictures.exif(orientation)
    data = pictures.encode(pictures.picture(), name, exif=exif, **options)
    seen = pictures.as_pillow_sees(data)
    height, width = (48, 40) if orientation >= 5 else (40, 48)
    assert seen.shape == (height, width, 3)
    out, _ = decode([data], settings(height, width))
    np.testing.assert_allclose(out[0].astype(int), seen.astype(int), atol=2)


@pytest.mark.parametrize("name", ["jpeg", "jpeg cmyk", "png", "png palette", "png alpha", "tiff"])
def test_colour_becomes_gray(name: str) -> None:
    data = pictures.files()[name]
    out, _ = decode([data], settings(pictures.HEIGHT, pictures.WIDTH, channels=1))
    seen = pictures.as_pillow_sees(data, channels=1).astype(int)
    # Pillow makes gray of a JPEG's RGB, DALI takes its luma: hard edges differ.
    np.testing.assert_allclose(out[0].astype(int), seen, atol=8)
    assert np.abs(out[0] - seen).mean() < 1


def test_gray_becomes_three_equal_channels() -> None:
    data = pictures.files()["png gray"]
    out, _ = decode([data], settings(pictures.HEIGHT, pictures.WIDTH))
    with Image.open(io.BytesIO(data)) as image:
        np.testing.assert_array_equal(out[0], np.repeat(np.asarray(image)[..., None], 3, axis=2))


@pytest.mark.parametrize("name", bad_files())
def test_a_bad_image_is_found_and_harms_no_other(name: str) -> None:
    good = [pictures.encode(pictures.picture(), "PNG", compress_level=n % 9) for n in range(7)]
    files = [*good[:3], bad_files()[name], *good[3:]]
    out, is_good = decode(files, settings(pictures.HEIGHT, pictures.WIDTH))
    assert is_good.tolist() == [True] * 3 + [False] + [True] * 4
    for pixels in out[is_good]:
        np.testing.assert_array_equal(pixels, np.asarray(pictures.picture()))


def test_many_bad_images_are_found() -> None:
    good, bad = pictures.encode(pictures.picture(), "PNG"), list(bad_files().values())
    rng = np.random.default_rng(1)
    one = Decoder(settings(16, 16))
    for _ in range(10):
        wanted = rng.random(MAX_BATCH) < 0.5
        files = [good if is_good else bad[rng.integers(len(bad))] for is_good in wanted]
        is_good = one.decode(files, np.zeros((MAX_BATCH, 16, 16, 3), np.uint8))
        assert is_good.tolist() == wanted.tolist()


def test_more_than_a_batch_is_refused() -> None:
    """DALI would crash on bad headers in it, now and then."""
    with pytest.raises(AssertionError):
        decode([pictures.files()["png"]] * (MAX_BATCH + 1), settings(16, 16))


def test_no_image_is_no_work() -> None:
    _, is_good = decode([], settings(16, 16))
    assert is_good.shape == (0,)


def test_pixels_depend_on_no_other_image_of_the_batch() -> None:
    files = [
        pictures.encode(pictures.picture(30 + 9 * n, 99 - 7 * n), "JPEG") for n in range(MAX_BATCH)
    ]
    together, _ = decode(files, settings(32, 32))
    alone = [decode([data], settings(32, 32))[0][0] for data in files]
    np.testing.assert_array_equal(together, alone)


def test_a_thin_image_is_not_blown_up() -> None:
    """Cropping after resizing would make 32 x 320,000 pixels of it, and 30 MiB."""
    thin = pictures.encode(pictures.picture(10_000, 1), "PNG")
    out, is_good = decode([thin], settings(32, 32))
    assert is_good.all()
    assert np.ptp(out[0], axis=(0, 1)).max() <= 1


def test_decoders_are_kept_and_never_shared() -> None:
    wanted = settings(17, 19)
    with borrowed(wanted, 0) as first, borrowed(wanted, 1) as second:
        assert first is not second
    with borrowed(wanted, 2) as again:
        assert again in (first, second)


def test_threads_decode_at_once_to_the_same_pixels() -> None:
    files = [pictures.encode(pictures.picture(60 + n, 50), "JPEG") for n in range(MAX_BATCH)]
    wanted = settings(24, 24)
    results: list[Pixels] = []

    def work(number: int) -> None:
        out = np.zeros((len(files), *wanted.shape), np.uint8)
        with borrowed(wanted, number) as own:
            own.decode(files, out)
        results.append(out)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])


def test_without_a_gpu_the_gpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder, "num_gpus", lambda: 0)
    with pytest.raises(HeadraceError, match="on a GPU, and there is none") as caught:
        Decoder(Settings(16, 16, 3, "crop", "gpu"))
    assert caught.value.where == "params.yaml:decode.device"
    assert "decode.device=cpu" in str(caught.value.fix)


def test_a_failing_machine_is_not_blamed_on_an_image(monkeypatch: pytest.MonkeyPatch) -> None:
    def out_of_memory(*_: object) -> None:
        raise RuntimeError(
            "Error in GPU operator `nvidia.dali.fn.decoders.image`, encountered: "
            "CUDA allocation failed: out of memory"
        )

    monkeypatch.setattr(decoder, "_build", out_of_memory)
    with pytest.raises(HeadraceError, match="not because of an image") as caught:
        decode([pictures.encode(pictures.picture(), "PNG")], settings(16, 16))
    assert caught.value.found == "CUDA allocation failed: out of memory"


def test_a_decoder_that_refuses_everything_is_not_blamed_on_an_image(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("Error in `nvidia.dali.fn.decoders.image`, encountered: failure '#4'")

    monkeypatch.setattr(decoder, "_build", refuse)
    with pytest.raises(HeadraceError, match="even a known good image"):
        decode([pictures.encode(pictures.picture(), "PNG")], settings(16, 16))


@pytest.mark.gpu
def test_the_gpu_decodes_what_the_cpu_decodes() -> None:
    data = pictures.encode(pictures.picture(), "JPEG", quality=95, subsampling=0)
    files = [data, bad_files()["half a JPEG"], pictures.encode(pictures.picture(), "PNG")]
    cpu = settings(pictures.HEIGHT, pictures.WIDTH)
    gpu = dataclasses.replace(cpu, device="gpu")
    out_cpu, is_good_cpu = decode(files, cpu)
    out_gpu, is_good_gpu = decode(files, gpu)
    assert is_good_cpu.tolist() == is_good_gpu.tolist() == [True, False, True]
    np.testing.assert_allclose(out_gpu.astype(int), out_cpu.astype(int), atol=4)
