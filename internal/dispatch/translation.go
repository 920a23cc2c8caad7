package dispatch

import (
	"crypto/rand"
	"errors"
	"time"

	"github.com/sluice-router/sluice/internal/openai"
	"github.com/sluice-router/sluice/internal/translate"
)

// planTranslation makes the chat body, once.
func planTranslation(x *request) *failure {
	if x.plan.translated != nil || x.plan.translationFault != nil {
		return x.plan.translationFault
	}
	p := x.call.Peeked
	// Before it is made: the copy is about as large as the original.
	if f := x.reserveCopy(len(p.Body)); f != nil {
		return f
	}
	o := translate.Options{ID: plainID(x.call.ID), Created: time.Now().Unix(), RefuseTools: x.d.cfg.Server.UntranslatableTools == "refuse"}
	var (
		body []byte
		ex   translate.Exchange
		err  error
	)
	if x.call.Route == openai.RouteMessages {
		body, ex, err = wrap(translate.MessagesRequest(p.Body, o))
	} else {
		body, ex, err = wrap(translate.ResponsesRequest(p.Body, o))
	}
	if more := cap(body) - len(p.Body); more > 0 {
		if f := x.reserveCopy(more); f != nil {
			return f
		}
	}
	var chat *openai.Peeked
	if err == nil {
		chat, err = openai.Peek(openai.RouteChatCompletions, body, openai.PeekOptions{})
	}
	if err != nil {
		f := &failure{reason: reasonBadRequest}
		if !errors.As(err, &f.local) {
			f.local = openai.Internal(err)
		}
		x.plan.translationFault = f
		return f
	}
	x.plan.translated = &translation{api: ex, peeked: chat}
	return nil
}

func wrap[E translate.Exchange](body []byte, e E, err error) ([]byte, translate.Exchange, error) {
	return body, e, err
}

// plainID is the request's id if it can be part of other ids, else a new one.
func plainID(id string) string {
	for _, c := range []byte(id) {
		if c != '-' && (c < '0' || c > '9') && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z') {
			return rand.Text()
		}
	}
	return id
}

// pathChat is the path of translated requests.
const pathChat = "/v1/chat/completions"

// translation is a request of the Messages or the Responses API as a pair of
// SGLang engines can serve it. Their own routes drop the fields by which the legs
// meet (llm-d/llm-d-router#2006), so that the pair is sent a chat request.
type translation struct {
	api translate.Exchange
	// peeked is the chat body. It is freed together with the client's.
	peeked *openai.Peeked
	// stream translates the answer, if it is streamed.
	stream translate.Stream
}
