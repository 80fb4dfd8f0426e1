"""Step 6: BERT in both norm orders, whole and over the ranks, and what it is trained on."""

from .bert import BERT
from .config import PAPER_MODELS, BertConfig
from .examples import pretraining_batch, pretraining_example
from .heads import Classifier, SpanReader
from .huggingface import from_huggingface_bert, to_huggingface_bert
from .masking import mask_for_mlm
from .parallel_bert import ParallelBERT, mlm_logits
from .sentence_order import pack_pair, sop_pair

__all__ = [
    "BERT",
    "PAPER_MODELS",
    "BertConfig",
    "Classifier",
    "ParallelBERT",
    "SpanReader",
    "from_huggingface_bert",
    "mask_for_mlm",
    "mlm_logits",
    "pack_pair",
    "pretraining_batch",
    "pretraining_example",
    "sop_pair",
    "to_huggingface_bert",
]
