-- Quality store, schema version 1. The vectors of a prompt can be computed again from its text.

CREATE TABLE embedders (
    ord          INTEGER PRIMARY KEY,
    model_sha256 TEXT    NOT NULL UNIQUE,  -- of model.onnx; embeddings of different files are never compared
    dimensions   INTEGER NOT NULL
) STRICT;

CREATE TABLE models (
    ord  INTEGER PRIMARY KEY,
    name TEXT    NOT NULL UNIQUE           -- public model name
) STRICT;

CREATE TABLE prompts (
    ord       INTEGER PRIMARY KEY,
    id        TEXT    NOT NULL UNIQUE,
    text      TEXT    NOT NULL,
    benchmark TEXT,
    task      TEXT,
    source    TEXT,                        -- where text and scores come from
    license   TEXT,                        -- of the text
    embedder  INTEGER NOT NULL REFERENCES embedders (ord),
    embedding BLOB    NOT NULL CHECK (length(embedding) = 1536),  -- 384 × f32, little-endian
    format    BLOB    NOT NULL CHECK (length(format) = 112)       -- 14 × f64, little-endian
) STRICT;

CREATE TABLE scores (
    prompt            INTEGER NOT NULL REFERENCES prompts (ord) ON DELETE CASCADE,
    model             INTEGER NOT NULL REFERENCES models (ord),
    score             REAL    NOT NULL CHECK (score BETWEEN 0 AND 1),
    completion_tokens REAL    CHECK (completion_tokens >= 0),
    cost_usd          REAL    CHECK (cost_usd >= 0),
    PRIMARY KEY (prompt, model)
) STRICT, WITHOUT ROWID;
