"""English to French with the model that comes with limelight, and the English behind each French token."""

import sys

from limelight import translate

text = sys.argv[1] if len(sys.argv) > 1 else "The cat sat on the mat."
translator = translate.load()
found = translator(text)
print(f"{text}\n{found.text}\n")

for sentence in found.sentences:
    names = [name for name in sentence.record if "cross" in name]  # the decoder's view of the English, by layer
    weights = sentence.record[names[-1]].dense()[0].mean(0)  # (French tokens, English tokens), mean over the heads
    for token, score, row in zip(sentence.tokens, sentence.scores, weights, strict=True):
        best = int(row[:-1].argmax())  # without the end of the sentence
        print(f"{token:>12} ← {sentence.source_tokens[best]:<12} {row[best]:.2f}   log-probability {score:.2f}")
