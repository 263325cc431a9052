"""Write a tiny Llama with random weights and a byte-level tokenizer: a model for a real engine, without a download.

Run by the engine's own interpreter (it needs torch and transformers): ``python model.py DIRECTORY``.
"""

from __future__ import annotations

import sys

VOCABULARY = 512
CONTEXT = 1024


def write(directory: str) -> None:
    """Save configuration, weights (bfloat16, seed 0) and tokenizer to ``directory``."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE(unk_token=None))
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<s>", "</s>", "<pad>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(["a request waits until blocks are free, then its tokens are computed " * 20], trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe, bos_token="<s>", eos_token="</s>", pad_token="<pad>", model_max_length=CONTEXT
    )
    torch.manual_seed(0)
    shape = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=CONTEXT,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=2,
        tie_word_embeddings=True,
    )
    LlamaForCausalLM(shape).to(torch.bfloat16).save_pretrained(directory)
    tokenizer.save_pretrained(directory)


if __name__ == "__main__":
    write(sys.argv[1])
