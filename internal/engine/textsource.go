package engine

import (
	"context"
	"errors"

	"github.com/sluice-router/sluice/internal/upstream"
)

// TextSource is how an engine that takes token ids tells how its text becomes tokens. Others
// answer with an error that wraps errors.ErrUnsupported. Limits in time are those of ctx.
type TextSource interface {
	// Bundle asks for the zip archive of the model's tokenizer, template and settings, of at
	// most limit bytes (else a *TooLargeError), and returns it with the SHA-256 that the
	// engine tells of it, in lower-case hexadecimal. It was compared with that of the data.
	Bundle(ctx context.Context, to *upstream.Endpoint, limit int) (archive []byte, digest string, err error)
	// Tokenize asks for the ids that the engine itself makes of a text. It costs the engine
	// the computing of the text.
	Tokenize(ctx context.Context, to *upstream.Endpoint, text string) ([]uint32, error)
}

// Bundle implements TextSource.
func (HTTP) Bundle(context.Context, *upstream.Endpoint, int) ([]byte, string, error) {
	return nil, "", errors.ErrUnsupported
}

// Tokenize implements TextSource.
func (HTTP) Tokenize(context.Context, *upstream.Endpoint, string) ([]uint32, error) {
	return nil, errors.ErrUnsupported
}
