"""Invented facts, passages and stories, and the questions about them."""

import random
from dataclasses import dataclass

SUMMARY_REQUESTS = (
    "Summarize the text above in two sentences.",
    "What is the text above about? Answer briefly.",
    "Give a short summary of the main points above.",
)
_PLACES = (
    "Alderford", "Brackwater", "Coldharbour", "Dunmere", "Eastwick Hill", "Fernley", "Greystone", "Hollow Bay",
    "Ironbridge Cross", "Juniper Falls", "Kestrel Point", "Larkfield", "Marrow Heath", "Northgate Quay",
    "Oakhampton", "Pinecrest", "Quarry End", "Ravensburg", "Saltmarsh", "Thornbury Vale", "Underhill", "Westmoor",
)  # fmt: skip
_PEOPLE = (
    "Amelia Hart", "Boris Lindqvist", "Clara Okafor", "Daniel Reyes", "Edith Moreau", "Felix Tanaka", "Greta Novak",
    "Hassan Ali", "Ingrid Sorensen", "Jonas Weber", "Kamala Iyer", "Leon Dubois", "Maria Petrova", "Nolan Byrne",
)  # fmt: skip
_TRADES = (
    "fishing", "glass making", "weaving", "ship building", "cheese", "clock making", "salt trading",
    "pottery", "coal mining", "printing", "beekeeping", "leather work",
)  # fmt: skip
_SIGHTS = (
    "an old lighthouse", "a stone bridge with nine arches", "a museum of clocks", "a botanical garden",
    "a ruined castle", "a covered market", "a wooden theatre", "a windmill", "a narrow canal", "a bell tower",
)  # fmt: skip
_KEYS = (
    "the special magic number", "the secret access code", "the lucky ticket number", "the locker number",
    "the account number", "the serial number",
)  # fmt: skip
_ACTORS = (
    "the baker", "an old sailor", "the new teacher", "a young engineer", "the station master", "my grandmother",
    "the town clerk", "a travelling merchant", "the night watchman", "a tired postman", "the village doctor",
)  # fmt: skip
_ACTS = (
    "walked slowly to", "wrote a long letter about", "could not forget", "repaired", "painted", "asked about",
    "was afraid of", "measured", "took a photograph of", "kept a diary about", "told the children about",
)  # fmt: skip
_THINGS = (
    "the wooden bridge", "the harbour", "a broken clock", "the school garden", "the first train", "the market square",
    "an empty house on the hill", "the river after the rain", "a box full of maps", "the winter festival",
)  # fmt: skip
_TIMES = (
    "in the morning", "before anyone else was awake", "during the long summer", "after the storm",
    "when the bells rang", "without saying a word", "although it was getting dark", "as the snow began to fall",
)  # fmt: skip


@dataclass(frozen=True)
class Fact:
    """A sentence to hide, the question about it, and what a right answer contains."""

    text: str
    question: str
    answer: str


@dataclass(frozen=True)
class Town:
    """A passage with four facts."""

    name: str
    text: str
    year: str
    mayor: str
    trade: str
    people: str

    def question(self, choice: random.Random) -> tuple[str, str]:
        """A question and what a right answer contains."""
        return choice.choice(
            (
                (f"In which year was {self.name} founded?", self.year),
                (f"Who is the mayor of {self.name}?", self.mayor),
                (f"What is {self.name} best known for?", self.trade),
                (f"How many people live in {self.name}?", self.people),
            )
        )


def needles(choice: random.Random, count: int) -> list[Fact]:
    """Facts of one form about different places, each with its own number."""
    key = choice.choice(_KEYS)
    return [_needle(key, place, choice) for place in choice.sample(_PLACES, count)]


def _needle(key: str, place: str, choice: random.Random) -> Fact:
    number = str(choice.randrange(10_000, 9_999_999))
    question = f"What is {key} for {place} mentioned in the text above? Answer with the number."
    return Fact(f"{key[0].upper()}{key[1:]} for {place} is {number}.", question, number)


def towns(choice: random.Random, count: int) -> list[Town]:
    """Passages about different towns; a long list repeats no name."""
    names = [
        f"{prefix}{place}"
        for prefix in ("", "New ", "Upper ", "Little ", "Old ")
        for place in _PLACES
    ]
    return [_town(name, choice) for name in choice.sample(names, min(count, len(names)))]


def _town(name: str, choice: random.Random) -> Town:
    year, people = str(choice.randrange(1100, 1950)), str(choice.randrange(1_200, 98_000))
    mayor, trade = choice.choice(_PEOPLE), choice.choice(_TRADES)
    text = (
        f"{name} is a town in the {choice.choice(('north', 'south', 'east', 'west'))} of the country. It was founded "
        f"in {year} and is best known for {trade}. Today {people} people live there. The mayor of {name} is {mayor}, "
        f"and visitors come to see {choice.choice(_SIGHTS)} and {choice.choice(_SIGHTS)}."
    )
    return Town(name, text, year, mayor, trade, people)


def story(choice: random.Random, tokens: int) -> str:
    """Paragraphs of sentences without a plot, at least `tokens` tokens of them."""
    paragraphs = (
        " ".join(_sentence(choice) for _ in range(choice.randrange(3, 8)))
        for _ in range(tokens // 40 + 2)
    )
    return "\n\n".join(paragraphs)


def _sentence(choice: random.Random) -> str:
    words = " ".join(choice.choice(part) for part in (_ACTORS, _ACTS, _THINGS, _TIMES))
    return f"{words[0].upper()}{words[1:]}."
