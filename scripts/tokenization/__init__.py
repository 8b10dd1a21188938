# SPDX-License-Identifier: Apache-2.0
"""The parts of scripts/tokenize.py, in the order in which a document passes through them:

    options    the command line
    files      inputs -> files, and their bytes without a compression
    inputs     files -> documents -> batches
    workers    batches -> processes, and their results in order
    encode     a batch -> tokens, masks or labels, training or validation
    tokenizer      text -> tokens
    conversations  a row -> messages
    preferences    a row -> a prompt and its answers
    chat_template  messages -> text, and which parts of it are learned from
    shards     tokens -> PREFIX.bin, PREFIX.idx and what lies beside them
    progress   the bar, and the summary at the end
    errors     failures and signals
"""
