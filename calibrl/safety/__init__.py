"""Planning under chance constraints: does 90 % safe mean safe nine times in ten?"""
