"""Prints what the heads of the translator do, as a table for docs/translator.md.

python docs/heads.py
"""

from __future__ import annotations

from collections import Counter
from statistics import mean
from typing import Any

import torch
from tokenizers import Tokenizer

from limelight import lens, translate
from limelight.lens.recorder import recording
from limelight.translate import vocabulary

# English, French, and which word of the French is written from which of the English.
SENTENCES = (
    ("The cat sat on the mat.", "Le chat s'est assis sur le tapis.", "chat cat, assis sat, tapis mat"),
    ("She is reading a book.", "Elle lit un livre.", "Elle She, lit reading, livre book"),
    ("Where is the station?", "Où est la gare ?", "Où Where, est is, gare station"),
    ("The black dog is sleeping.", "Le chien noir dort.", "chien dog, noir black, dort sleeping"),
    ("My brother lives in Boston.", "Mon frère vit à Boston.", "Mon My, frère brother, vit lives, Boston Boston"),
    ("We bought a new house.", "Nous avons acheté une nouvelle maison.", "acheté bought, nouvelle new, maison house"),
    ("It is very cold today.", "Il fait très froid aujourd'hui.", "très very, froid cold"),
    (
        "He drank a glass of cold water.",
        "Il a bu un verre d'eau froide.",
        "bu drank, verre glass, eau water",
    ),
    ("Tom closed the white door.", "Tom a fermé la porte blanche.", "Tom Tom, fermé closed, porte door, blanche white"),
    (
        "The children are playing in the garden.",
        "Les enfants jouent dans le jardin.",
        "enfants children",
    ),
    ("I have lost my red umbrella.", "J'ai perdu mon parapluie rouge.", "perdu lost, rouge red"),
    ("You should see a doctor.", "Tu devrais voir un médecin.", "devrais should, voir see, médecin doctor"),
    (
        "My sister wears a green dress.",
        "Ma sœur porte une robe verte.",
        "sœur sister, porte wears, robe dress, verte green",
    ),
    ("The old man opened the window.", "Le vieil homme a ouvert la fenêtre.", "vieil old, homme man, ouvert opened"),
    ("I never drink coffee at night.", "Je ne bois jamais de café la nuit.", "bois drink, jamais never, café coffee"),
    (
        "They sold their small boat.",
        "Ils ont vendu leur petit bateau.",
        "vendu sold, leur their, petit small, bateau boat",
    ),
    ("The train arrives at noon.", "Le train arrive à midi.", "train train, arrive arrives, midi noon"),
    ("His daughter speaks English well.", "Sa fille parle bien anglais.", "fille daughter, parle speaks, bien well"),
    ("We are waiting for the bus.", "Nous attendons le bus.", "Nous We, attendons waiting, bus bus"),
    ("She gave me a blue pencil.", "Elle m'a donné un crayon bleu.", "donné gave, crayon pencil, bleu blue"),
    ("The soup is too hot.", "La soupe est trop chaude.", "soupe soup, trop too, chaude hot"),
    ("Can you close the door?", "Peux-tu fermer la porte ?", "Peux Can, fermer close, porte door"),
    (
        "He wrote a long letter to his mother.",
        "Il a écrit une longue lettre à sa mère.",
        "écrit wrote, lettre letter, mère mother",
    ),
    ("There is no bread on the table.", "Il n'y a pas de pain sur la table.", "pain bread, sur on, table table"),
    (
        "Her parents live near the sea.",
        "Ses parents vivent près de la mer.",
        "parents parents, vivent live, près near, mer sea",
    ),
    ("I will call you tomorrow.", "Je vous appellerai demain.", "vous you, appellerai call, demain tomorrow"),
    ("The white horse runs fast.", "Le cheval blanc court vite.", "cheval horse, blanc white, court runs, vite fast"),
    ("Nobody knows the answer.", "Personne ne connaît la réponse.", "Personne Nobody, connaît knows, réponse answer"),
    ("He always arrives late.", "Il arrive toujours en retard.", "arrive arrives, toujours always, retard late"),
    (
        "Please bring me a clean glass.",
        "Apportez-moi un verre propre, s'il vous plaît.",
        "moi me, verre glass, propre clean",
    ),
    ("This cheap car is broken.", "Cette voiture bon marché est cassée.", "voiture car, cassée broken"),
    ("I forgot the name of the street.", "J'ai oublié le nom de la rue.", "oublié forgot, nom name, rue street"),
    ("Winter is coming soon.", "L'hiver arrive bientôt.", "hiver Winter, arrive coming, bientôt soon"),
)
SHOWN = ("entropy", "first", "self", "previous", "next", "separators")


def places(tokens: list[str], word: str) -> list[int]:
    """The tokens that a word is made of."""
    for begin in range(len(tokens)):
        for end in range(begin + 1, len(tokens) + 1):
            if "".join(tokens[begin:end]).replace("▁", "") == word:
                return list(range(begin, end))
    raise ValueError(f"{word!r} is not in {tokens}")


def seen(
    translator: translate.Translator, english: str, french: str, pairs: str
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The report on the heads, and how well each points from the French to the English words."""
    tokenizer: Tokenizer = translator.tokenizer
    source, target = vocabulary.encode(tokenizer, [english, french])
    begin = vocabulary.number(tokenizer, vocabulary.PADDING)
    with torch.no_grad(), recording(translator.model) as record:
        translator.model(torch.tensor([source]), torch.tensor([[begin, *target[:-1]]]))
    read, written = ([tokenizer.id_to_token(i) or "" for i in ids] for ids in (source, target))
    links = [pair.split() for pair in pairs.split(", ")]
    wanted = [(places(written, a), places(read, b)) for a, b in links]
    related = lens.relation(record, wanted, kind="cross")
    return lens.heads(record, {"encoder": read, "decoder": ["<pad>", *written[:-1]]}), related


def main() -> None:
    translator = translate.load()
    rows: dict[tuple[str, int], list[dict[str, Any]]] = {}
    right: dict[tuple[str, int], float] = {}
    count = 0
    for sentence in SENTENCES:
        report, related = seen(translator, *sentence)
        links = len(sentence[2].split(", "))
        count += links
        for row in report:
            rows.setdefault((row["module"], row["head"]), []).append(row)
        for row in related:
            place = row["module"], row["head"]
            right[place] = right.get(place, 0.0) + links * row["accuracy"]
    best = max(right, key=lambda place: right[place])
    print(f"{len(SENTENCES)} sentences with {count} word pairs; the best head, {best[1]} of {best[0]}, finds", end=" ")
    print(f"{right[best] / count:.0%} of them.\n")
    print(f"| attention | layer | head | {' | '.join(SHOWN)} | alignment | most often |")
    print(f"|---|--:|--:|{'--:|' * (len(SHOWN) + 1)}---|")
    for (module, head), found in rows.items():
        first = found[0]
        numbers = [f"{mean(row[n] for row in found):.2f}" if first[n] is not None else "" for n in SHOWN]
        numbers.append(f"{right[module, head] / count:.2f}" if (module, head) in right else "")
        label, often = Counter(row["label"] for row in found).most_common(1)[0]
        where = f"{first['stack']} {first['kind']} | {first['layer']} | {head}"
        print(f"| {where} | {' | '.join(numbers)} | {label} ({often} of {len(found)}) |")


if __name__ == "__main__":
    main()
