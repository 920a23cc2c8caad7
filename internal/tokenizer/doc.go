// Package tokenizer turns text into the token ids of a model and back, as the
// tokenizer.json of the model says.
//
// The reference is the library that made the file, Hugging Face's tokenizers (0.23.3):
// for the same file and text, Encode gives the ids that its encode gives, always. What
// this package does not know it refuses when the file is parsed (UnsupportedError); it
// never takes a guess, since ids that are nearly right give answers that are nearly
// right, and nobody notices.
//
// Not for: chat templates (package chattemplate), the model's other files (package
// textmodel), waiting for a core to encode on (package queue), stop strings (package
// stopwords).
//
// # Encoding
//
// A text passes these steps, each in a file of its own; all but the third may be empty:
//
//  1. Added tokens, such as <|im_start|>, are looked for in the text, the longest of
//     those that begin first (added.go). What is between them are segments. A token with
//     "normalized": true is looked for in the normalised segments instead.
//  2. The normalizer rewrites each segment: Unicode forms, replacements (normalize.go,
//     unicodeform.go).
//  3. The pre-tokenizer cuts each segment into words (pretokenize.go), by regular
//     expressions in the dialect of Oniguruma (regexp*.go), whose tables of Unicode are
//     those of the reference and not those of Go (unicodetable.go).
//  4. The model merges the pieces of each word, bytes or characters, in the order of its
//     list of merges (bpe.go, merge.go).
//  5. The post-processor puts tokens such as <s> before and behind (postprocess.go).
//
// # Decoding
//
// The section "decoder" is applied to each token when the file is parsed (decode.go), so that
// an id costs the copy of a few bytes. What depends on the ids before it is done as they come
// (Stream): characters that are spread over several tokens, and the space that the first
// token of a text loses. AppendTokenText gives the names of tokens in log probabilities.
//
// The sections "truncation" and "padding" of a file are ignored, as servers do, which
// set both to none before they encode.
//
// Text that is not valid UTF-8 is read as encoding/json reads it: each byte that is not
// part of a valid sequence counts as U+FFFD. The reference takes only valid text. A NUL
// is a character like any other.
package tokenizer
