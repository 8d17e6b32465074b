"""The paper's mathematics in torch: extractors, classifier, generator. Knows no files and no data sets."""
