"""Surveys: what the heads of a model do over a whole corpus."""

from limelight.parallel.survey.documents import Corpus
from limelight.parallel.survey.run import survey

__all__ = ["Corpus", "survey"]
