package vllmgrpc

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/sluice-router/sluice/internal/engine"
	vllmpb "github.com/sluice-router/sluice/internal/enginepb/vllm"
	"github.com/sluice-router/sluice/internal/upstream"
)

const methodEmbed = service + "Embed"

// maxEmbeds is how many prompts of a request are embedded at the same time.
const maxEmbeds = 16

// embed runs a request for embeddings: the engine takes one prompt at a time.
func (c *call) embed() (*upstream.Response, error) {
	g := c.req.Generate
	ctx, cancel := context.WithCancel(c.ctx)
	defer cancel()
	vectors, id := make([][]float32, len(g.Prompts)), c.id()
	var (
		lanes sync.WaitGroup
		begun atomic.Int64
		mu    sync.Mutex
		first error
	)
	for range min(len(g.Prompts), maxEmbeds) {
		lanes.Go(func() {
			for ctx.Err() == nil {
				p := int(begun.Add(1)) - 1
				if p >= len(g.Prompts) {
					return
				}
				v, err := c.embedOne(ctx, engine.CallID(id, p), g.Prompts[p])
				if err != nil {
					mu.Lock()
					if first == nil {
						first = err // those that end because of it come later
					}
					mu.Unlock()
					cancel()
					return
				}
				vectors[p] = v
			}
		})
	}
	lanes.Wait()
	if first == nil && c.ctx.Err() != nil {
		first = upstream.NewCanceled(c.ctx, &upstream.Error{Op: upstream.OpHeader, Addr: c.addr(), Sent: true})
	}
	if first != nil {
		return c.failed(first)
	}
	body := g.AppendEmbeddings(nil, vectors, id, time.Now().Unix())
	return upstream.NewResponse(http.StatusOK, jsonHeader, int64(len(body)), &plainBody{left: body}), nil
}

func (c *call) embedOne(ctx context.Context, id string, prompt []uint32) ([]float32, error) {
	message, err := proto.Marshal(&vllmpb.EmbedRequest{
		RequestId: strings.ToValidUTF8(id, "?"), Tokenized: &vllmpb.TokenizedInput{InputIds: prompt},
	})
	if err != nil {
		return nil, c.invalid(err)
	}
	raw, err := c.channel.Invoke(ctx, methodEmbed, message, c.options)
	if err != nil {
		return nil, err
	}
	var m vllmpb.EmbedResponse
	if err := proto.Unmarshal(raw, &m); err != nil {
		return nil, c.malformed(err)
	}
	switch {
	case len(m.Embedding) == 0:
		return nil, c.malformed(errors.New("the engine's embedding is empty"))
	case !finite(m.Embedding):
		return nil, c.malformed(errors.New("the engine's embedding has numbers that are none"))
	case m.EmbeddingDim != 0 && int(m.EmbeddingDim) != len(m.Embedding):
		return nil, c.malformed(fmt.Errorf("the engine's embedding has %d numbers, and it said %d", len(m.Embedding), m.EmbeddingDim))
	}
	return m.Embedding, nil
}

// finite tells whether JSON can have all the numbers.
func finite(v []float32) bool {
	for _, x := range v {
		if f := float64(x); math.IsNaN(f) || math.IsInf(f, 0) {
			return false
		}
	}
	return true
}
