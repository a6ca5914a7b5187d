"""Makes a Llama with random weights, small enough for tests to start an engine with it in no time.

Usage: tiny_llama.py CORPUS OUT [KV_HEADS [DEVIATION]], in the engine's environment. The corpus is
any text that does not change; it trains the byte-level BPE tokenizer. The same corpus gives the
same files. With weights of a larger standard deviation the next token depends on all that came
before, instead of being the same one or two for ever.
"""

import sys
from pathlib import Path

import torch
from hugging_face import LlamaShape, write_folder
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

SEED = 20
VOCABULARY = 1024
# Of the weights' normal distribution, as in freshly initialized Llamas.
STANDARD_DEVIATION = 0.02
BEGIN, END, START_TURN, END_TURN = "<s>", "</s>", "<|im_start|>", "<|im_end|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def main(corpus: Path, out: Path, kv_heads: int = 2, deviation: float = STANDARD_DEVIATION) -> None:
    """Write the model."""
    tokenizer = train_tokenizer(corpus.read_text())
    shape = LlamaShape(
        hidden=256,
        intermediate=512,
        layers=4,
        query_heads=8,
        kv_heads=kv_heads,
        head=32,
        vocabulary=VOCABULARY,
        max_positions=8192,
        rope_theta=10000.0,
        norm_epsilon=1e-5,
        bos_token=BEGIN,
        bos_token_id=tokenizer.token_to_id(BEGIN),
        eos_token=END,
        eos_token_id=tokenizer.token_to_id(END),
    )
    write_folder(out, shape, random_weights(shape, deviation), tokenizer, CHAT_TEMPLATE)


def random_weights(shape: LlamaShape, deviation: float) -> dict[str, torch.Tensor]:
    """Weights that depend on the seed, the shape and the deviation alone; the norms are ones."""
    generator = torch.Generator().manual_seed(SEED)
    return {
        name: torch.ones(size)
        if len(size) == 1
        else torch.randn(size, generator=generator) * deviation
        for name, size in shape.weight_shapes().items()
    }


def train_tokenizer(text: str) -> Tokenizer:
    """Byte-level BPE over a text: every byte is a token, so nothing is unknown."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[BEGIN, END, START_TURN, END_TURN],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(text.splitlines(), trainer=trainer)
    if tokenizer.get_vocab_size() != VOCABULARY:
        raise SystemExit(f"the corpus gives {tokenizer.get_vocab_size()} tokens, not {VOCABULARY}")
    return tokenizer


if __name__ == "__main__":
    corpus, out, *shape = sys.argv[1:]
    main(Path(corpus), Path(out), *map(int, shape[:1]), *map(float, shape[1:]))
