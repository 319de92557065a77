"""A hook that masks personal data with Presidio (https://microsoft.github.io/presidio/).

usage: GUARD_SECRET=whsec_… presidio.py [PORT]

Needs presidio-analyzer, presidio-anonymizer, and for names of people a model of spaCy
(`python -m spacy download en_core_web_lg`). GUARD_MODEL=blank does without: patterns alone are found.
"""

import os

import hook
import spacy
from presidio_analyzer import AnalyzerEngine
from presidio_analyzer.nlp_engine import SpacyNlpEngine
from presidio_anonymizer import AnonymizerEngine


class BlankEngine(SpacyNlpEngine):
    """Without a model there are words, and no names."""

    def load(self):
        self.nlp = {"en": spacy.blank("en")}


analyzer = AnalyzerEngine(nlp_engine=BlankEngine()) if os.environ.get("GUARD_MODEL") == "blank" else AnalyzerEngine()
anonymizer = AnonymizerEngine()


def decide(message):
    replacements = []
    for pointer, text in hook.texts(message):
        if found := analyzer.analyze(text=text, language="en", score_threshold=0.5):
            value = anonymizer.anonymize(text=text, analyzer_results=found).text
            replacements.append({"pointer": pointer, "value": value})
    if not replacements:
        return {"decision": "allow"}
    return {"decision": "mask", "reason": "personal_data", "replacements": replacements}


if __name__ == "__main__":
    hook.serve(decide)
