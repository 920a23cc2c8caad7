package dispatch

import (
	"context"
	"math"

	"github.com/sluice-router/sluice/internal/openai"
	"github.com/sluice-router/sluice/internal/textmodel"
	"github.com/sluice-router/sluice/internal/tokenizer"
)

// noModel is a generate.Model where the files of the model's tokenizer can't be used, or there
// are none: what is known of the model its engines tell.
type noModel modelReader

func (m *noModel) Tokenizer() *tokenizer.Tokenizer     { return nil }
func (m *noModel) Digest() string                      { return "" }
func (m *noModel) Context() int                        { return 0 }
func (m *noModel) EOS() []uint32                       { return nil }
func (m *noModel) Formats() textmodel.Formats          { return textmodel.Formats{} }
func (m *noModel) DefaultSampling() textmodel.Sampling { return textmodel.Sampling{} }

// VocabSize is unknown unless the engine tells it.
func (m *noModel) VocabSize() int {
	if m.Engine != nil && m.Engine.Vocab > 0 {
		return m.Engine.Vocab
	}
	return math.MaxInt32
}

func (m *noModel) ChatRefusal() error {
	return &textmodel.Refusal{Reason: "there is no tokenizer for it", Err: m.Err}
}

func (m *noModel) RenderChatAtMost(context.Context, []byte, int) ([]uint32, error) {
	return nil, m.ChatRefusal()
}

// refusal is that of routes that make tokens of text or text of tokens.
func (m *noModel) refusal() *openai.Error {
	return unsupportedText("text can't be made into tokens, nor tokens into text, for this model: " + m.ChatRefusal().Error())
}
