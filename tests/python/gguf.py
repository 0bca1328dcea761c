"""GGUF files derived from another one: with other metadata, or with its layers repeated."""
import struct

SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
UINT32, STRING = 4, 8
TEMPLATE = "tokenizer.chat_template"


class File:
    """The header of a GGUF file: `metadata` as (type, bytes) by key, `tensors` as (name, dimensions, type, offset)."""

    def __init__(self, path):
        with open(path, "rb") as file:
            self.bytes = file.read()
        if self.bytes[:4] != b"GGUF":
            raise ValueError(f"{path} is not a GGUF file")
        self.version, tensors, keys = struct.unpack_from("<IQQ", self.bytes, 4)
        self.at, self.metadata, self.tensors = 24, {}, []
        for _ in range(keys):
            key, kind = self.text(), self.number("I")
            begin = self.at
            self.skip(kind)
            self.metadata[key] = (kind, self.bytes[begin:self.at])
        for _ in range(tensors):
            name = self.text()
            dimensions = [self.number("Q") for _ in range(self.number("I"))]
            self.tensors.append((name, dimensions, self.number("I"), self.number("Q")))
        kind, alignment = self.metadata.get("general.alignment", (UINT32, struct.pack("<I", 32)))
        self.alignment = struct.unpack("<I", alignment)[0]
        self.data = aligned(self.at, self.alignment)

    def number(self, form):
        value = struct.unpack_from("<" + form, self.bytes, self.at)[0]
        self.at += struct.calcsize("<" + form)
        return value

    def text(self):
        length = self.number("Q")
        self.at += length
        return self.bytes[self.at - length:self.at].decode()

    def skip(self, kind):
        if kind == STRING:
            length = self.number("Q")
            self.at += length
        elif kind == 9:
            inner, count = self.number("I"), self.number("Q")
            if inner in SIZES:
                self.at += SIZES[inner] * count
            else:
                for _ in range(count):
                    self.skip(inner)
        else:
            self.at += SIZES[kind]

    def weights(self, index):
        """The bytes of a tensor, up to the beginning of the next one."""
        offset = self.tensors[index][3]
        later = [other[3] for other in self.tensors if other[3] > offset]
        return self.bytes[self.data + offset:self.data + min(later) if later else len(self.bytes)]

    def number_of(self, key):
        """The number under a key of the architecture, such as block_count."""
        return struct.unpack("<I", self.metadata[self.key(key)][1])[0]

    def key(self, key):
        return f"{text_of(self.metadata['general.architecture'])}.{key}"

    def write(self, path, metadata=None, times=1):
        """Writes the file with other metadata and its layers repeated `times` times."""
        layers = self.number_of("block_count")
        changed = {**self.metadata, **(metadata or {}), self.key("block_count"): (UINT32, struct.pack("<I", layers * times))}
        tensors = []
        for index, (name, dimensions, kind, _) in enumerate(self.tensors):
            if name.startswith("blk."):
                _, layer, rest = name.split(".", 2)
                tensors += [(f"blk.{int(layer) + turn * layers}.{rest}", dimensions, kind, index) for turn in range(times)]
            else:
                tensors.append((name, dimensions, kind, index))
        payloads = ((name, dimensions, kind, self.weights(index)) for name, dimensions, kind, index in tensors)
        write(path, changed, list(payloads), self.alignment)


def write(path, metadata, tensors, alignment=32):
    """Writes a file: metadata as (type, bytes) by key, tensors as (name, dimensions, type, bytes)."""
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(metadata))
    for key, (kind, value) in metadata.items():
        head += packed(key) + struct.pack("<I", kind) + value
    offset = 0
    for name, dimensions, kind, weights in tensors:
        head += packed(name) + struct.pack(f"<I{len(dimensions)}QIQ", len(dimensions), *dimensions, kind, offset)
        offset += aligned(len(weights), alignment)
    with open(path, "wb") as file:
        file.write(head.ljust(aligned(len(head), alignment), b"\0"))
        for *_, weights in tensors:
            file.write(weights.ljust(aligned(len(weights), alignment), b"\0"))


def aligned(length, alignment):
    return -(-length // alignment) * alignment


def packed(text):
    return struct.pack("<Q", len(text.encode())) + text.encode()


def string(text):
    """A value for `metadata`."""
    return STRING, packed(text)


def text_of(value):
    return value[1][8:].decode()
