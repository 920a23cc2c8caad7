package textmodel

import (
	"context"
	"errors"

	"github.com/sluice-router/sluice/internal/tokenizer"
)

// encode calls the tokenizer, as soon as that encodes.
func encode(ctx context.Context, t *tokenizer.Tokenizer, text string, addSpecial bool) ([]uint32, error) {
	e, ok := any(t).(interface {
		Encode(ctx context.Context, dst []uint32, text string, addSpecial bool) ([]uint32, error)
	})
	if !ok {
		return nil, errors.New("the tokenizer cannot encode yet")
	}
	return e.Encode(ctx, nil, text, addSpecial)
}
