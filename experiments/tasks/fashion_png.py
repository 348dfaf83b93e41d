"""Fashion-MNIST from a folder of PNG files, read one by one as they are needed, with augmentation.

    python experiments/tasks/fashion_png.py write DATA_DIR FOLDER    makes the folder

`DATA_DIR` is where torchvision finds Fashion-MNIST, or downloads it to. The folder has a folder for
each of `train` and `test`, with one for each class, as torchvision's ImageFolder reads them.
"""

import argparse
from pathlib import Path

from raysync import DataSet, LazyDataSet, data_set

MEAN, STD = 0.286, 0.353


def folder(*, path: str) -> DataSet | LazyDataSet:
    """Return the images in a folder: shifted and mirrored at random for training."""
    from torchvision import datasets, transforms

    plain = [transforms.Grayscale(), transforms.ToTensor(), transforms.Normalize(MEAN, STD)]
    augmented = [transforms.RandomCrop(28, padding=2), transforms.RandomHorizontalFlip(), *plain]
    parts = {"train": transforms.Compose(augmented), "test": transforms.Compose(plain)}
    train, test = (
        datasets.ImageFolder(str(Path(path) / part), transform=transform)
        for part, transform in parts.items()
    )
    return data_set("fashion-png", train, test, classes=10)


def write(data_dir: Path, target: Path, train: int, test: int) -> None:
    """Write the first images of Fashion-MNIST as PNG files."""
    from torchvision.datasets import FashionMNIST

    for part, count in (("train", train), ("test", test)):
        images = FashionMNIST(data_dir, train=part == "train", download=True)
        for index in range(count):
            image, label = images[index]
            file = target / part / str(label) / f"{index:05}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            image.save(file)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("do", choices=["write"])
    parser.add_argument("data_dir", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--train", type=int, default=6000)
    parser.add_argument("--test", type=int, default=1000)
    given = parser.parse_args()
    write(given.data_dir, given.folder, given.train, given.test)
