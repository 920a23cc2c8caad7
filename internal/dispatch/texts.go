package dispatch

import (
	"context"

	"github.com/sluice-router/sluice/internal/generate"
	"github.com/sluice-router/sluice/internal/openai"
	"github.com/sluice-router/sluice/internal/textmodel"
)

// Text is how the text of a pool's model becomes tokens.
type Text struct {
	// TakesTokens: the pool's engines take token ids and give token ids.
	TakesTokens bool
	// Reader reads prompts by the model's files; nil: they are not here.
	Reader PromptReader
	// Missing is why Reader is nil, in words for clients; empty: nobody has looked yet.
	Missing string
}

// Turn does work on a text of so many bytes, that takes processor time, when its turn has
// come. Its errors, beside those of work, are those of a full queue and of a context that
// ended.
type Turn = func(ctx context.Context, bytes int, work func(ctx context.Context) error) error

// PromptReader makes tokens of requests by the files of one model. Its errors for clients
// are *openai.Error; those of turn are returned as they are. What it returns has no part of
// the request's body. Its methods are safe for concurrent use, and return soon once ctx ends.
type PromptReader interface {
	// Read makes the request in tokens of a body of the chat, completions or embeddings API.
	// name is the model's in the answer; empty: what the client calls it.
	Read(ctx context.Context, p *openai.Peeked, name string, turn Turn) (*generate.Request, error)
	// Count makes the token ids of the prompts alone.
	Count(ctx context.Context, p *openai.Peeked, turn Turn) ([][]uint32, error)
	// Answer is the whole answer to a request that no engine is needed for: tokenize,
	// detokenize, and counting the tokens of messages.
	Answer(ctx context.Context, p *openai.Peeked, turn Turn) ([]byte, error)
}

// Renderer makes the token ids of a chat request's body elsewhere. Its errors are those of
// [textmodel.Renderer].
type Renderer interface {
	Chat(ctx context.Context, body []byte) (*textmodel.Rendered, error)
}

// TextQueue runs work on texts: not too much of it at one time, and fairly among keys. Its
// work is run by the goroutine that calls Do.
type TextQueue interface {
	Do(ctx context.Context, key string, bytes int, work func(ctx context.Context) error) error
}
