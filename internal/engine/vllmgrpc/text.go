package vllmgrpc

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/sluice-router/sluice/internal/engine"
	commonpb "github.com/sluice-router/sluice/internal/enginepb/common"
	vllmpb "github.com/sluice-router/sluice/internal/enginepb/vllm"
	"github.com/sluice-router/sluice/internal/upstream"
)

const methodTokenizer = service + "GetTokenizer"

var errNoChannel = errors.New("it is not spoken to by gRPC")

// textIdle is the longest silence of an engine that sends its tokenizer.
const textIdle = 30 * time.Second

// unimplemented is the status of a method that a server does not have.
const unimplemented = 12

// Bundle implements engine.TextSource by GetTokenizer, whose last chunk has the digest. Engines without
// that method wrap errors.ErrUnsupported.
func (Dialect) Bundle(ctx context.Context, to *upstream.Endpoint, limit int) (archive []byte, digest string, err error) {
	ch := to.Channel()
	if ch == nil {
		return nil, "", errNoChannel
	}
	s, err := ch.Stream(ctx, methodTokenizer, nil, upstream.CallOptions{Limits: upstream.Limits{Header: textIdle, StreamIdle: textIdle}})
	if err != nil {
		return nil, "", err
	}
	defer s.Close()
	told := ""
	for {
		raw, err := s.Next()
		if err == io.EOF {
			break
		}
		var st *upstream.StatusError
		switch {
		case errors.As(err, &st) && st.Code == unimplemented:
			return nil, "", fmt.Errorf("GetTokenizer: %w (%w)", errors.ErrUnsupported, err)
		case err != nil:
			return nil, "", fmt.Errorf("GetTokenizer: %w", err)
		}
		if told != "" {
			return nil, "", errors.New("GetTokenizer goes on behind the part that has the digest")
		}
		if len(raw) > limit-len(archive)+1024 {
			return nil, "", &engine.TooLargeError{Limit: limit}
		}
		var m commonpb.GetTokenizerChunk
		if err := proto.Unmarshal(raw, &m); err != nil {
			return nil, "", fmt.Errorf("GetTokenizer: %w", err)
		}
		archive, told = append(archive, m.Data...), m.Sha256
	}
	sum := sha256.Sum256(archive)
	digest = hex.EncodeToString(sum[:])
	switch {
	case len(archive) > limit:
		return nil, "", &engine.TooLargeError{Limit: limit}
	case len(archive) == 0:
		return nil, "", errors.New("GetTokenizer gives no files")
	case told == "":
		return nil, "", errors.New("GetTokenizer gives no digest of the files: they may have been cut off")
	case !strings.EqualFold(told, digest):
		return nil, "", fmt.Errorf("the digest of the files that GetTokenizer gave is %s, and it said %.64q", digest, told)
	}
	return archive, digest, nil
}

// maxTold bounds how many ids Tokenize takes, in tokens.
const maxTold = 64 << 10

// Tokenize implements engine.TextSource: a generation of one token that asks for the log
// probabilities of its prompt, which have the prompt's ids.
func (Dialect) Tokenize(ctx context.Context, to *upstream.Endpoint, text string) ([]uint32, error) {
	ch := to.Channel()
	if ch == nil {
		return nil, errNoChannel
	}
	ask, err := proto.Marshal(&vllmpb.GenerateRequest{
		Input: &vllmpb.GenerateRequest_Text{Text: text},
		SamplingParams: &vllmpb.SamplingParams{
			Temperature: proto.Float32(0), TopP: 1, RepetitionPenalty: 1, N: 1, MaxTokens: proto.Uint32(1), PromptLogprobs: proto.Int32(0),
		},
	})
	if err != nil {
		return nil, err
	}
	raw, err := ch.Invoke(ctx, methodGenerate, ask, upstream.CallOptions{})
	if err != nil {
		return nil, err
	}
	var m message
	if err := m.decode(raw); err != nil {
		return nil, err
	}
	switch ids := m.input.ids; {
	case string(m.finish) == "error" || string(m.finish) == "abort":
		return nil, fmt.Errorf("the engine ended the request with finish_reason %q", m.finish)
	case len(ids) == 0:
		return nil, errors.New("the engine does not tell the ids of a prompt")
	case len(ids) > maxTold:
		return nil, fmt.Errorf("the engine told %d ids of a text of %d bytes", len(ids), len(text))
	default:
		return append([]uint32(nil), ids...), nil
	}
}
