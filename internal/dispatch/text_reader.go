package dispatch

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"time"

	"github.com/sluice-router/sluice/internal/fleet"
	"github.com/sluice-router/sluice/internal/generate"
	"github.com/sluice-router/sluice/internal/openai"
	"github.com/sluice-router/sluice/internal/textmodel"
)

// textOf is what the fleet knows of a pool's text, as Options.Texts.
func (d *services) textOf(pool string) Text {
	t := d.fleet.Text(pool)
	text := Text{TakesTokens: t.TakesTokens}
	switch {
	case t.Model != nil || t.IDsOnly:
		text.Reader = &modelReader{PoolText: t, pool: pool, renderer: d.opts.Renderer, renderLimit: d.cfg.Text.RendererLimit}
	case t.Err != nil:
		text.Missing = t.Err.Error()
	}
	return text
}

// modelReader reads prompts by the files of a pool's model.
type modelReader struct {
	fleet.PoolText
	pool string
	// renderer makes tokens of chats that Model cannot; it may be nil.
	renderer    Renderer
	renderLimit time.Duration
}

// Read implements PromptReader.
func (r *modelReader) Read(ctx context.Context, p *openai.Peeked, name string, turn Turn) (*generate.Request, error) {
	o := generate.ReadOptions{Model: name, Context: int(r.Context), Queue: turn}
	if o.Model == "" && p.Model == "" {
		o.Model = r.pool
	}
	if e := r.Engine; e != nil {
		o.Vocab, o.EOS, o.Sampling = e.Vocab, e.EOS, e.Sampling
	}
	if e := r.refuseText(p); e != nil {
		return nil, e
	}
	if r.Model == nil {
		req, err := generate.Read(ctx, p, (*noModel)(r), o)
		return req, textError(err)
	}
	if r.renderer != nil && p.Route == openai.RouteChatCompletions && (r.Model.ChatRefusal() != nil || p.MediaParts > 0) {
		o.Render = func(ctx context.Context, _ []byte) ([]uint32, error) { return r.render(ctx, p, name) }
	}
	req, err := generate.Read(ctx, p, r.Model, o)
	return req, textError(err)
}

// render makes the token ids of a chat elsewhere. The body is copied: a connection may still
// read it when the request has ended.
func (r *modelReader) render(ctx context.Context, p *openai.Peeked, name string) ([]uint32, error) {
	var s openai.Splicer
	s.Reset(p)
	if name != "" {
		s.SetString(openai.FieldModel, name)
	}
	segments, _ := s.Segments()
	got, err := r.renderer.Chat(ctx, slices.Concat(segments...))
	var failed *textmodel.RendererError
	switch {
	case err == nil && got.Features != nil:
		return nil, unsupportedText("the messages have media, which engines that are spoken to by gRPC are not sent")
	case err == nil:
		return got.IDs, nil
	case !errors.As(err, &failed):
		return nil, err
	case failed.Timeout:
		e := &openai.Error{Status: http.StatusGatewayTimeout, Type: "server_error", Code: "upstream_timeout", Cause: err,
			Message: "the renderer gave no answer within " + r.renderLimit.String() + " (--renderer-timeout-secs)"}
		return nil, e
	}
	return nil, &openai.Error{Status: http.StatusBadGateway, Type: "server_error", Code: "upstream_failed", Cause: err,
		Message: "the renderer (--renderer-url), which makes tokens of chats with this model, failed"}
}

// refuseText refuses prompts that are text where the engine makes other tokens of them than
// the model's files do.
func (r *modelReader) refuseText(p *openai.Peeked) *openai.Error {
	if r.Mismatch == nil || p.PromptKind.TokenIDs() || p.Route == openai.RouteChatCompletions {
		return nil // a chat is refused by the model
	}
	return r.refusal()
}

// refusal is that of a text where the engine makes other tokens.
func (r *modelReader) refusal() *openai.Error {
	return unsupportedText("prompts that are text are refused for this model: " + r.Mismatch.Error() + "; prompts that are token ids are served")
}

// Count implements PromptReader.
func (r *modelReader) Count(ctx context.Context, p *openai.Peeked, turn Turn) (prompts [][]uint32, err error) {
	err = turn(ctx, len(p.Body), func(ctx context.Context) error {
		if p.Route == openai.RouteChatCompletions {
			ids, err := r.Model.RenderChat(ctx, p.Body)
			prompts = [][]uint32{ids}
			return textError(err)
		}
		texts, err := promptTexts(p.Raw(openai.FieldPrompt))
		for _, text := range texts {
			var ids []uint32
			if ids, err = r.Model.Encode(ctx, text); err != nil {
				break
			}
			prompts = append(prompts, ids)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return prompts, nil
}

// promptTexts are the texts of a completions prompt.
func promptTexts(raw []byte) (texts []string, err error) {
	var one string
	if err = json.Unmarshal(raw, &one); err == nil {
		return []string{one}, nil
	}
	if err = json.Unmarshal(raw, &texts); err == nil && len(texts) == 0 {
		err = errors.ErrUnsupported
	}
	return texts, err
}

// textError is what a model's files tell of a request, for clients.
func textError(err error) error {
	var request *textmodel.RequestError
	var refusal *textmodel.Refusal
	switch {
	case err == nil:
		return nil
	case errors.As(err, &request):
		e := openai.InvalidRequest(request.Param, "%s", request.Message)
		if request.Media {
			e.Code = codeUnsupported
		}
		return e
	case errors.As(err, &refusal):
		return unsupportedText("chats with this model are refused: " + refusal.Error())
	}
	return err
}

// codeUnsupported is generate.CodeUnsupported.
const codeUnsupported = "unsupported_for_grpc"

func unsupportedText(why string) *openai.Error {
	e := openai.InvalidRequest("", "%s", why)
	e.Code = codeUnsupported
	return e
}
