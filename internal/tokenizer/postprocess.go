package tokenizer

import (
	"errors"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// template is the post-processor: the ids that are put before and behind those of a text.
type template struct {
	before, behind []uint32
}

type processorFile struct {
	Type       string           `json:"type"`
	Processors []jsontext.Value `json:"processors"` // of Sequence
	Single     []struct {
		SpecialToken *struct {
			ID string `json:"id"`
		} `json:"SpecialToken"`
		Sequence *struct {
			ID string `json:"id"`
		} `json:"Sequence"`
	} `json:"single"`
	SpecialTokens map[string]struct {
		IDs []uint32 `json:"ids"`
	} `json:"special_tokens"`
	CLS []jsontext.Value `json:"cls"` // of BertProcessing and RobertaProcessing: text and id
	SEP []jsontext.Value `json:"sep"`
}

// parsePostProcessor reads the section "post_processor". Of a sequence only one may add
// tokens: the reference takes what the first made for two texts, by other rules.
func parsePostProcessor(v jsontext.Value, size int) (template, error) {
	var t template
	if !present(v) {
		return t, nil
	}
	var f processorFile
	if err := json.Unmarshal(v, &f, fileOptions); err != nil {
		return t, brokenSection("post_processor", err)
	}
	list := []processorFile{f}
	if f.Type == "Sequence" {
		if len(f.Processors) > maxSteps {
			return t, unsupported("post_processor", "a sequence of %d", len(f.Processors))
		}
		list = make([]processorFile, len(f.Processors))
		for i, p := range f.Processors {
			if err := json.Unmarshal(p, &list[i], fileOptions); err != nil {
				return t, brokenSection("post_processor", err)
			}
		}
	}
	adding := 0
	for _, f := range list {
		var err error
		switch f.Type {
		case "ByteLevel": // changes offsets alone
			continue
		case "TemplateProcessing":
			t, err = f.template()
		case "BertProcessing", "RobertaProcessing":
			t, err = f.pair()
		default:
			return t, unsupported("post_processor", "type %q", f.Type)
		}
		if err != nil {
			return t, err
		}
		if adding++; adding > 1 {
			return t, unsupported("post_processor", "a sequence of several that add tokens")
		}
	}
	for _, ids := range [][]uint32{t.before, t.behind} {
		for _, id := range ids {
			if uint64(id) >= uint64(size) {
				return t, errors.New("tokenizer.json: post_processor: an id that no token has")
			}
		}
	}
	return t, nil
}

// template reads the field "single" of TemplateProcessing.
func (f *processorFile) template() (template, error) {
	var t template
	texts := 0
	for _, item := range f.Single {
		switch {
		case item.Sequence != nil && item.Sequence.ID == "A":
			texts++
		case item.SpecialToken != nil:
			token, known := f.SpecialTokens[item.SpecialToken.ID]
			if !known {
				return t, errors.New("tokenizer.json: post_processor: a special token that it does not define")
			}
			into := &t.before
			if texts > 0 {
				into = &t.behind
			}
			if *into = append(*into, token.IDs...); len(*into) > 1024 {
				return t, unsupported("post_processor", "more than 1024 tokens")
			}
		default:
			return t, unsupported("post_processor", "an item of this kind")
		}
	}
	if texts != 1 {
		return t, unsupported("post_processor", "a template with the text %d times", texts)
	}
	return t, nil
}

// pair reads the fields "cls" and "sep".
func (f *processorFile) pair() (template, error) {
	var t template
	for _, side := range []struct {
		token []jsontext.Value
		into  *[]uint32
	}{{f.CLS, &t.before}, {f.SEP, &t.behind}} {
		var id uint32
		if len(side.token) != 2 || json.Unmarshal(side.token[1], &id) != nil {
			return t, errors.New("tokenizer.json: post_processor: cls and sep must be pairs of a text and an id")
		}
		*side.into = []uint32{id}
	}
	return t, nil
}
