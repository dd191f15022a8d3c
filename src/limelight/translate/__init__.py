"""Translation with attention in view: the English–French model that comes with limelight, and how to train others.

>>> from limelight import translate
>>> translate.Recipe().width
256
"""

from limelight.translate.data import Pair, divide, read_pairs
from limelight.translate.recipe import Recipe
from limelight.translate.results import Sentence, Translation
from limelight.translate.training import Progress, bleu, train
from limelight.translate.translator import Translator, load, shipped

__all__ = [
    "Pair",
    "Progress",
    "Recipe",
    "Sentence",
    "Translation",
    "Translator",
    "bleu",
    "divide",
    "load",
    "read_pairs",
    "shipped",
    "train",
]
