-- Version 2: how profiled answers came about, and what clients said of answers they got.

CREATE TABLE answers (                      -- of `profile quality`; a score may have none (imported)
    prompt        INTEGER NOT NULL,
    model         INTEGER NOT NULL,
    destination   TEXT    NOT NULL,         -- that answered
    scorer        TEXT    NOT NULL,         -- how it was scored
    prompt_tokens REAL    CHECK (prompt_tokens >= 0),
    ttft_s        REAL    CHECK (ttft_s >= 0),
    latency_s     REAL    CHECK (latency_s >= 0),
    is_cut        INTEGER NOT NULL CHECK (is_cut IN (0, 1)),  -- it ended at its token limit
    answered_at   REAL    NOT NULL,         -- seconds since 1970
    PRIMARY KEY (prompt, model),
    FOREIGN KEY (prompt, model) REFERENCES scores (prompt, model) ON DELETE CASCADE
) STRICT, WITHOUT ROWID;

CREATE TABLE feedback (
    ord               INTEGER PRIMARY KEY,
    owner             TEXT    NOT NULL,     -- name of the API key, '' where the router is open
    request_id        TEXT    NOT NULL,
    answered_at       REAL    NOT NULL,     -- seconds since 1970; ids may come again
    given_at          REAL    NOT NULL,     -- of the score that stands
    destination       TEXT    NOT NULL,
    model             INTEGER NOT NULL REFERENCES models (ord),
    score             REAL    NOT NULL CHECK (score BETWEEN 0 AND 1),
    predicted         REAL    NOT NULL CHECK (predicted BETWEEN 0 AND 1),
    label             TEXT,
    completion_tokens REAL    CHECK (completion_tokens >= 0),
    cost_usd          REAL    CHECK (cost_usd >= 0),
    text              TEXT,                 -- only where the configuration keeps prompts
    embedder          INTEGER REFERENCES embedders (ord),
    embedding         BLOB    CHECK (length(embedding) = 1536),
    format            BLOB    NOT NULL CHECK (length(format) = 112),
    UNIQUE (owner, request_id, answered_at)
) STRICT;

CREATE INDEX feedback_by_time ON feedback (given_at);
